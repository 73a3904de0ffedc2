"""The part of rank 0 that brings the other ranks to the call and sees them out of it."""

from __future__ import annotations

import atexit
import sys

from autoddp.comm.place import HERE
from autoddp.decorator import notebook, start
from autoddp.decorator.start import Origin
from autoddp.decorator.workers import LAST, PATIENCE, ParentLink, Workers
from autoddp.errors import BadInput, Disagreement
from autoddp.options import Options
from autoddp.process import worker
from autoddp.process.devices import Devices
from autoddp.process.streams import Logs, tail
from autoddp.report import Report


def start_workers(
    site: str, ranks: int, options: Options, origin: Origin, devices: Devices
) -> ParentLink | None:
    """Start the ranks above 0, or send them on to the call.

    They are forked where that is safe, for each call anew, since a fork has all that rank 0 has.
    Where it is not, ranks that are there from an earlier call go on from its end; else they start
    afresh.

    Returns:
        None in rank 0; in a forked rank, its link to rank 0.

    Raises:
        BadInput: No way is possible.
    """
    against, workers = start.unforkable(), HERE.workers
    if against and (workers is not None or notebook.interactive()):
        go_on(workers, site, ranks, against)
        return None
    if workers is not None:
        workers.close()
    logs = Logs(options.log_dir)
    logs.make()
    HERE.workers = workers = Workers(logs, copied=not against)
    atexit.register(workers.close)
    post = None
    if workers.copied:
        post = start.fork(workers, ranks)
    else:
        start.spawn(workers, ranks, origin, devices)
        Report(speaks=not options.quiet).say(
            f"{against}: the other ranks are no forks, they run the script anew, muted, "
            f"up to {site}"
        )
    if post is not None:
        HERE.workers = None
        atexit.register(worker.leave, 0)
    else:
        workers.begin(site)
    return post


def go_on(workers: Workers | None, site: str, ranks: int, against: str) -> None:
    """Send the ranks of an earlier call on to this one.

    Raises:
        BadInput: There are no such ranks, or not as many, or no script in which they could go on.
    """
    way = "use autoddp run, or call it earlier"
    if workers is None or notebook.interactive():
        reason, way = "no script is there to start them with", notebook.way_out(against)
    elif not workers.alive or len(workers.members) != ranks - 1:
        reason = "those of an earlier call cannot take part"
    else:
        workers.copied = False
        workers.begin(site)
        workers.order(go_on=True)
        return
    raise BadInput(
        f"{site} needs {ranks} ranks, but this process cannot be forked ({against}), and {reason}; "
        f"{way}"
    )


def settle(workers: Workers, word: str) -> None:
    """Wait for the others to return or raise like rank 0, and end those that do not in time.

    If rank 0 has returned, the whole program ends with them; not so a session in which somebody
    works, and whose variables are rank 0's.

    Args:
        workers: The other ranks.
        word: "returned" or "raised", what rank 0 has done.

    Raises:
        Disagreement: Another rank has not returned, in such a session.
    """
    interrupted = isinstance(sys.exception(), KeyboardInterrupt)
    other = workers.settle(word, LAST if word == "returned" else 0 if interrupted else PATIENCE)
    if other and word == "returned":
        what = "raised an exception in" if other[0].word == "raised" else "did not return from"
        what = f"{what} {workers.site}, rank 0 returned"
        if notebook.interactive():
            said = tail(workers.logs.of(other[0].rank))
            workers.close()
            raise Disagreement(f"rank {other[0].rank} {what}; the end of its log:\n{said}")
        workers.fail(other[0], what, 1)
    if other:
        workers.close()  # rank 0's error is the reason; the others wait for what will not come
