"""A job that lives on between the cells of a notebook, which are the script that it runs.

Rank 0 is the kernel: cells run in it as ever. Each other rank is a fork of it that came out of the
cell which began the job, waits for the next one, and runs that in its own copy of the session. A
cell begins when rank 0 has sent it, and ends when all ranks have come to its end. In between the
kernel is busy by itself (completions, messages of widgets), and the job rests: see `Context.rest`.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import json
import os
import sys
import traceback
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, NoReturn

from autoddp.decorator import join, notebook
from autoddp.decorator.cell_programs import run_once
from autoddp.decorator.wholes import make_all_whole
from autoddp.effects import randomness
from autoddp.errors import AutoDDPError, Disagreement, RankEnded
from autoddp.process.script import strip

if TYPE_CHECKING:
    from autoddp.decorator.cells import Cells
    from autoddp.options import Options

NEXT, END = "the next cell", "the end of a cell"
SITE = "the notebook's cells"
PATIENCE = 4.0  # seconds that a kernel which is shut down has for that; it is killed after 5
TOLD = 4000  # characters of an exception that another rank alone has raised
WIDGET = (
    "a widget was used between two cells: what that has changed is changed on rank 0 alone; "
    "set in a cell what the script is to use"
)
BROKEN = (
    "the ranks have ended, as they were at different places; the notebook goes on with rank 0's "
    "variables, and %autoddp begins anew"
)


class CellJob:
    """One rank's part of the job."""

    def __init__(self, cells: Cells, options: Options, ranks: int) -> None:
        self.cells, self.session = cells, cells.session
        self._rest, self._follows = ExitStack(), False
        with ExitStack() as job:
            self.run = job.enter_context(join.forked(SITE, options, ranks))
            self.group, self.context = self.run.group, self.run.group.context
            self._set_up(job)
            self._job = job.pop_all()

    def _set_up(self, undo: ExitStack) -> None:
        session = self.session
        undo.callback(setattr, self.cells, "job", None)
        # `await` at the top level is Python's error then: other tasks run meanwhile, on rank 0
        undo.callback(setattr, session, "autoawait", session.autoawait)
        session.autoawait = False
        undo.enter_context(run_once(session, self.run.effects))
        show = session.showtraceback
        session.showtraceback = lambda *args, **named: _show(show, *args, **named)
        undo.callback(delattr, session, "showtraceback")
        kernel = notebook.kernel()
        if self.group.rank == 0:
            atexit.register(self._at_exit)
            undo.callback(atexit.unregister, self._at_exit)
            if kernel is not None:
                self._watch_kernel(kernel, undo)
            return
        session.history_manager.db_cache_size = sys.maxsize  # the history is the kernel's to write
        if kernel is not None:  # no message may be answered twice, whatever becomes of the cell
            kernel.session.send = _drop
            kernel.post_handler_hook = _leave

    # ---- rank 0

    def send(self, info: Any) -> None:
        """Send the cell that begins to the other ranks, and be with them again."""
        if self.group.rank:
            return
        self._rest.close()
        count = self.session.execution_count - info.store_history
        alike = self.run.draws_alike and self.run.effects.synced
        states = randomness.states() if alike else None  # the kernel may have drawn meanwhile
        cell = {"raw_cell": info.raw_cell, "store_history": info.store_history}
        cell |= {"shell_futures": info.shell_futures, "cell_id": info.cell_id}
        with self.context.internal():
            self.group.call(NEXT, lambda: [cell, count, states])

    def end(self) -> None:
        """End the job on all ranks; those above 0 end with it."""
        make_all_whole(self.session.user_ns)
        self._job.close()

    def _at_exit(self) -> None:
        """End the job as the kernel exits, unless that is within a cell."""
        if self.context.resting:
            self._rest.close()
            self.group.call(NEXT, lambda: None)
            self.end()

    def _watch_kernel(self, kernel: Any, undo: ExitStack) -> None:
        """Hear of what comes to the kernel beside cells: its end, and what is done to widgets."""
        self._shut_down, kernel.do_shutdown = kernel.do_shutdown, self._before_shutdown
        undo.callback(delattr, kernel, "do_shutdown")
        handlers, name = kernel.shell_handlers, "comm_msg"
        plain = handlers[name]

        def handle(stream: Any, ident: Any, message: Any) -> Any:
            method = message["content"]["data"].get("method")
            if self.context.resting and method in ("update", "custom"):
                self.run.report.say_once("cells", "", WIDGET)
            return plain(stream, ident, message)

        handlers[name] = handle
        undo.callback(handlers.__setitem__, name, plain)

    async def _before_shutdown(self, restart: bool) -> Any:
        """End the job on the main thread, before the kernel ends all processes of its own."""
        if self.context.resting:
            ended: Future[None] = Future()
            notebook.kernel().io_loop.add_callback(_call, self._at_exit, ended)
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.wrap_future(ended), PATIENCE)
        done = self._shut_down(restart)
        return await done if inspect.isawaitable(done) else done

    # ---- all ranks

    def rest(self, result: Any) -> None:
        """Come to the end of a cell with all ranks, and rest; ranks above 0 wait for the next."""
        with self.context.internal():
            error = self._met(result)
        if error is not None:
            self._break(error, result)
            return
        self._rest.enter_context(self.context.rest())
        if self.group.rank and not self._follows:
            self._follow()

    def _met(self, result: Any) -> AutoDDPError | None:
        """Meet the others; return an error if they do not end the cell as this rank does."""
        raised, mine = None, ("returned from", "")
        if result is not None:
            before = result.error_before_exec
            raised = before if before is not None else result.error_in_exec
        if self.group.rank == 0 and isinstance(raised, (Disagreement, RankEnded)):
            return raised  # the others may be anywhere
        if raised is not None:
            text = "".join(traceback.format_exception(raised))
            mine = f"raised {type(raised).__name__} in", text[-TOLD:]
        said: list[list[str]] = []
        try:
            # an interrupt comes on all ranks then, as the cell has ended
            with self.group.parting(), suppress(KeyboardInterrupt):
                said = json.loads(self.group.confer(END, json.dumps(mine).encode()))
        except AutoDDPError as error:
            return error
        own, told = said[0] if said else ("", "")
        for rank, (what, text) in enumerate(said):
            if what != own:
                return Disagreement(f"rank {rank} {what} the cell, rank 0 {own} it; {text or told}")
        return None

    def _break(self, error: AutoDDPError, result: Any) -> None:
        """End the job with an error, which is the cell's, unless that has raised it itself."""
        with suppress(Exception):
            self._job.__exit__(type(error), error, error.__traceback__)
        if result is not None and result.error_in_exec is not error:
            result.error_in_exec = error
            self.session.showtraceback((type(error), error, None))
        self.run.report.say(BROKEN)

    # ---- the others

    def _follow(self) -> NoReturn:
        """Run the cells that come, up to the end of the job."""
        self._follows = True
        try:
            while True:
                self.group.wait_for_a_call()
                self._rest.close()
                with self.context.internal():
                    found = self.group.call(NEXT, lambda: None)
                if found is None:
                    self.end()
                cell, self.session.execution_count, states = found
                if states is not None:
                    randomness.take(states)
                self.session.run_cell(**cell)
        finally:
            _leave()


def _call(act: Any, ended: Future[None]) -> None:
    """Call what another thread waits for."""
    try:
        act()
    finally:
        ended.set_result(None)


def _show(show: Any, *args: Any, **named: Any) -> None:
    """Show what a cell has raised, without the frames that are ours."""
    error = sys.exception()
    if error is not None:
        strip(error)
    show(*args, **named)


def _drop(*_: Any, **__: Any) -> None:
    """Send no message of the kernel's from a fork."""


def _leave() -> NoReturn:
    os._exit(1)
