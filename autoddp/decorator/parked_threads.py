"""Threads of known libraries, which end for the time of a fork and begin again after it.

A fork has the memory of all threads and runs only the one that forked: a lock that another one held
stays locked in it, and a queue that another one emptied fills. So these threads are ended in order,
with all that they had to do done, and begun again: in this process as they were, and in a fork so
that nothing happens twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autoddp.report.places import shell


class NoRecords:
    """The file of TensorBoard's events in a rank above 0: rank 0 writes them."""

    def write(self, data: bytes) -> None:
        """Drop the events that were queued."""

    def flush(self) -> None:
        """Do nothing: nothing was kept."""


@dataclass(frozen=True)
class ParkedThread:
    """A thread that has ended, and how it begins again: as before, or as that of a fork."""

    again: Callable[[], object]
    in_fork: Callable[[], object]


def is_known(thread: threading.Thread) -> bool:
    """Return whether a thread may be ended and begun again, or goes on and is not missed."""
    return _kind(thread) in _WAYS or _scripts(thread) is not None


def park() -> list[ParkedThread]:
    """End the known threads, and return how they begin again."""
    found = [thread for thread in threading.enumerate() if _kind(thread) in _WAYS]
    scripts = [(s, t) for t in threading.enumerate() if (s := _scripts(t)) is not None]
    parked = [_WAYS[_kind(thread)](thread) for thread in found]
    return parked + [_park_scripts(*each) for each in scripts]


def _kind(thread: threading.Thread) -> str:
    return f"{type(thread).__module__}:{type(thread).__name__}"


def _scripts(thread: threading.Thread) -> Any:
    """Return IPython's magics like `%%bash`, if the thread is that of their programs; else None."""
    session = shell()
    magics = session and session.magics_manager.registry.get("ScriptMagics")
    loop = getattr(magics, "event_loop", None)
    target = getattr(thread, "_target", None)
    return magics if loop is not None and getattr(target, "__self__", None) is loop else None


def _park_scripts(magics: Any, thread: threading.Thread) -> ParkedThread:
    """End the thread that waits for the programs of `%%bash`; a fork begins one of its own."""
    loop = magics.event_loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()

    def again() -> None:
        threading.Thread(target=loop.run_forever, daemon=True).start()

    return ParkedThread(again, lambda: setattr(magics, "event_loop", None))


def _park_bars(monitor: Any) -> ParkedThread:
    """End the thread that refreshes tqdm's bars; the next bar in a fork begins another."""
    bars, interval = monitor.tqdm_cls, monitor.sleep_interval
    monitor.exit()

    def again() -> None:
        bars.monitor = type(monitor)(bars, interval)

    return ParkedThread(again, lambda: None)


def _park_events(writer: Any) -> ParkedThread:
    """End the thread that writes TensorBoard's events, once its queue is empty.

    The file's own buffer is flushed, or each fork would write it again at its end. The same object
    begins again, since its writer knows it; in a fork it empties the queue into nothing.
    """
    queue, records, seconds = writer._queue, writer._record_writer, writer._flush_secs
    writer.stop()
    records.flush()

    def begin(file: Any) -> None:
        writer.__init__(queue, file, seconds)
        writer.start()

    return ParkedThread(lambda: begin(records), lambda: begin(NoRecords()))


_WAYS: dict[str, Callable[[Any], ParkedThread]] = {
    "tqdm._monitor:TMonitor": _park_bars,
    "tensorboard.summary.writer.event_file_writer:_AsyncWriterThread": _park_events,
}
