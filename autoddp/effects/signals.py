"""Signals that the script handles are acted on at the same point of the program by all ranks."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import ExitStack
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

from autoddp.comm.signal_sync import NEWS, RETURNED
from autoddp.effects.outward import EffectRow, Outward, ask
from autoddp.effects.ownership import users_call
from autoddp.patching import Call, patch
from autoddp.report import users_frame

if TYPE_CHECKING:
    from autoddp.effects.run import Run

WHY = "a handler that saves, stops or raises does so at the same step on all ranks"
MINE = (signal.SIGCHLD, NEWS)  # of this process alone: its children, news of an order


class Signals(Outward):
    """The feature that runs the script's handlers where rank 0 says, for all; see `SignalSync`."""

    name: ClassVar[str] = "signals"
    without: ClassVar[str] = "each rank acts on a signal where it stands"
    views = ("global",)
    rows: ClassVar[tuple[EffectRow, ...]] = (
        ask(
            ("signal:setitimer", "signal:getitimer", "signal:alarm"),
            why="rank 0's timer is that of all ranks: its signal comes to all at the same step",
        ),
    )

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.signal_sync = run.group.signal_sync
        self.handlers: dict[int, Any] = {}

    def setup(self, undo: ExitStack) -> None:
        """Take over the handlers that are there already, such as Ctrl-C's KeyboardInterrupt."""
        super().setup(undo)
        # what `os.getpid` tells the script
        self.process = self.run.group.call("the process of the script", os.getpid)
        if threading.current_thread() is not threading.main_thread():
            return  # Python runs handlers on the main thread, and the job is on another
        self._take_over()
        before = signal.signal(NEWS, self.signal_sync.news)
        for line in self.run.group.channel.orders.values():
            line.announce(NEWS)
        undo.callback(signal.signal, NEWS, before)
        undo.callback(self._give_back)

    @patch("signal:signal", why=WHY)
    def handle(self, call: Call) -> Any:
        """Set a handler of the script's, to be called when all ranks are at one point."""
        number: Any = call.named.get("signalnum")
        handler = call.named.get("handler")
        shared = _is_shared(number, handler)
        if not self._ours() or not (shared or number in self.handlers):
            return call.plain()
        if number in self.handlers and self._meets():  # signals that were put off come first
            self.effects.ask_rank0(f"signals ({number})", lambda: None)
        before = call.wrapped(number, self._received if shared else handler)
        known = self.handlers.pop(number, before)
        if shared:
            self.handlers[number] = handler
        return known

    @patch("signal:getsignal", why="the script finds the handler that it has set")
    def handled(self, call: Call) -> Any:
        """Return the handler that the script has set, whoever asks."""
        found = call.plain()
        if found != self._received or self.signal_sync.act is None:
            return found
        return self.handlers[int(call.args[0] if call.args else call.kwargs["signalnum"])]

    @patch(
        *("signal:raise_signal", "os:kill", "os:killpg"),
        why="a signal that the script sends to itself comes to all ranks at that place; one to "
        "another process, which is no child of its own, rank 0 alone sends",
    )
    def send(self, call: Call) -> Any:
        """Run at once the handler of a signal that the process sends to itself.

        This is as in one process; no rank waits for another.
        """
        given: tuple[Any, ...] = (*call.args, *call.kwargs.values())
        to, number = given if len(given) == 2 else (self.process, *given, None)[:2]
        mine = call.target != "os:killpg" and to in (self.process, os.getpid())
        if not number or not self.effects.context.in_job():
            return call.plain()
        if not mine:
            return None if self.rank and self._ours() and not _is_child(to) else call.plain()
        blocked = number in signal.pthread_sigmask(signal.SIG_BLOCK, ())  # it is to wait
        if number in self.handlers and not blocked and self._meets():
            return self._act(int(number))
        return call.wrapped(*given[:-1] and [os.getpid()], number)

    def _meets(self) -> bool:
        return self.effects.accepts_effects() and self.signal_sync.here()

    def _ours(self) -> bool:
        return self.signal_sync.act is not None and self.effects.context.in_job() and users_call(2)

    def _received(self, number: int, frame: FrameType | None) -> None:
        self.signal_sync.received(number)

    def _act(self, number: int) -> None:
        """Run the script's handler, as if the signal had come just now."""
        handler = self.handlers.get(number)
        if handler is None:  # removed meanwhile, on all ranks: what is set now handles it
            os.kill(os.getpid(), number)
            return
        with self.effects.context.script():  # what it does is the script's, for all
            handler(number, users_frame())
        wakeup = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        if wakeup >= 0 and self.effects.context.in_job():
            os.write(wakeup, bytes([RETURNED + number]))

    def _take_over(self) -> None:
        """Have the handlers that are there called where all ranks are."""
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if _is_shared(number, handler):
                self.handlers[number] = handler
                signal.signal(number, self._received)
        self.signal_sync.act = self._act

    def _give_back(self) -> None:
        """Set the script's handlers as the process's own again."""
        self.signal_sync.act = None
        for number, handler in self.handlers.items():
            if signal.getsignal(number) == self._received:
                signal.signal(number, handler)


def _is_shared(number: Any, handler: Any) -> bool:
    """Return whether a handler is a function of the script's, for a signal to the whole job."""
    plain = isinstance(handler, signal.Handlers) or not callable(handler)
    return not plain and number not in MINE


def _is_child(number: Any) -> bool:
    """Return whether this process has started that one."""
    try:
        os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (OSError, TypeError):
        return False
    return True
