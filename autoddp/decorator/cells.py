"""`%autoddp`: the cells of a notebook that follow run on ranks which live on between them."""

from __future__ import annotations

import multiprocessing
import threading
from typing import TYPE_CHECKING, Any

from autoddp.comm.place import HERE
from autoddp.decorator import settled
from autoddp.errors import BadInput

if TYPE_CHECKING:
    from autoddp.decorator.cell_job import CellJob
    from autoddp.options import Options

LINE_MAGIC = "%autoddp"
STOPS = ("stop", "end")


class Cells:
    """The cells of an IPython session as they begin and end, and the job that they are run in."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.running = 0  # cells that run now, one inside another
        self.job: CellJob | None = None
        self.alone = False  # a job of one rank: this process runs cells as ever
        # what others do at a cell's beginning and end belongs to the cell
        callbacks = session.events.callbacks
        callbacks["pre_run_cell"].insert(0, self._before)
        callbacks["post_run_cell"].append(self._after)

    def begin(self, options: Options) -> None:
        """Begin a job that lives on between cells; what follows in this cell is in it already.

        Raises:
            BadInput: There is a job, or the ranks cannot be forks of this process.
        """
        if self.job is not None or self.alone or HERE.world is not None:
            raise BadInput(
                f"{LINE_MAGIC} is given inside a job, whose ranks are there; end that one first, "
                f"by {LINE_MAGIC} stop"
            )
        options, another, ranks = settled(options)
        self.alone = another or ranks == 1 or multiprocessing.parent_process() is not None
        if self.alone:
            return
        from autoddp.decorator.cell_job import CellJob  # with torch

        self.running = max(1, self.running)  # a cell that began before the extension was loaded
        self.job = CellJob(self, options, ranks)

    def stop(self) -> None:
        """End the job: what follows is run by this process alone, with rank 0's variables.

        Raises:
            BadInput: There is none.
        """
        if self.job is None and not self.alone:
            raise BadInput(
                f"{LINE_MAGIC} stop is given without a job; {LINE_MAGIC} --nproc 2 begins one"
            )
        self.alone = False
        if self.job is not None:
            self.job.end()

    def check_none(self) -> None:
        """Check that there is no job that a cell is part of.

        Raises:
            BadInput: There is one.
        """
        if self.job is not None:
            raise BadInput(
                f"%%autoddp begins a job, but this cell is part of one; leave it out, or end that "
                f"one first by {LINE_MAGIC} stop"
            )

    def _before(self, info: Any) -> None:
        """Note that a cell begins; the ranks have it, too, unless it is inside another one."""
        if threading.current_thread() is not threading.main_thread():
            return
        self.running += 1
        if self.running == 1 and self.job is not None:
            self.job.send(info)

    def _after(self, result: Any) -> None:
        """Note that a cell ends; an empty one ends without having begun."""
        empty = result is not None and not result.info.raw_cell.strip()
        if empty or not self.running or threading.current_thread() is not threading.main_thread():
            return
        self.running -= 1
        if not self.running and self.job is not None:
            self.job.rest(result)
