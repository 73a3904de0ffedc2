"""The ends of this node's ranks, as the kernel tells them before torch has waited for a rank."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from autoddp.launch.failure import Failure
from autoddp.process.launcher_signals import ALONE, LauncherSignals, kill

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.api import WorkerGroup


def codes(pids: Mapping[int, int]) -> dict[int, int]:
    """Return the exit codes of the ranks that have ended, and leave the wait to torch."""
    found = {}
    for local_rank, pid in pids.items():
        try:
            end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            found[local_rank] = 0  # torch has waited for it, and says by itself if it failed
            continue
        if end is not None:
            found[local_rank] = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
    return found


def first(ended: Mapping[int, int], worker_group: WorkerGroup) -> Failure | None:
    """Return the first failure among the exit codes of the ranks here, None if none has failed.

    Of ranks that failed within one interval it is one that was killed: others fail because that
    one is gone.
    """
    failed = [(rank, code) for rank, code in ended.items() if code]
    if not failed:
        return None
    local_rank, code = min(failed, key=lambda one: one[1] >= 0)
    return Failure(worker_group.workers[local_rank].global_rank, local_rank, code)


def left_early(ended: Mapping[int, int], signals: LauncherSignals) -> bool:
    """Return whether all ended well, some by `os._exit(0)`, which gives torch no word of it."""
    ranks = range(signals.ranks)
    return bool(ended) and all(rank in ended or signals.code_of(rank) == 0 for rank in ranks)


@contextmanager
def deadline() -> Iterator[None]:
    """Kill the ranks that do not end soon on a SIGTERM, for which torch waits half a minute."""
    timer = threading.Timer(ALONE, kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # ranks are forked without threads around
