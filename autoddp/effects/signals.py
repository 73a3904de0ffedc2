"""Signals: all ranks run the script's handlers at the same point of the program."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import ExitStack
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

from autoddp.comm.signal_sync import NEWS, RETURNED
from autoddp.effects.effect_feature import EffectFeature, EffectRow, ask
from autoddp.effects.ownership import scripts
from autoddp.effects.who_acts import Mode
from autoddp.patching import Call, patch
from autoddp.report import users_frame

if TYPE_CHECKING:
    from autoddp.effects.run import Run

WHY = "a handler saves, stops or raises at the same step on all ranks"
OWN = (signal.SIGCHLD, NEWS)  # concern this process only: its children, orders of rank 0


class Signals(EffectFeature):
    """The feature that runs the script's handlers at one point on all ranks; see `SignalSync`."""

    name: ClassVar[str] = "signals"
    without: ClassVar[str] = "each rank handles a signal at once, wherever it is"
    views = ("global",)
    rows: ClassVar[tuple[EffectRow, ...]] = (
        ask(
            ("signal:setitimer", "signal:getitimer", "signal:alarm"),
            why="rank 0's timer serves all ranks: they handle its signal at the same step",
        ),
    )

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.signal_sync = run.group.signal_sync
        self.handlers: dict[int, Any] = {}

    def setup(self, undo: ExitStack) -> None:
        """Take over the handlers that are set already, such as Ctrl-C's KeyboardInterrupt."""
        super().setup(undo)
        # the result of `os.getpid` in the script
        self.process = self.run.group.call("the process of the script", os.getpid)
        if threading.current_thread() is not threading.main_thread():
            return  # Python runs handlers on the main thread, which does not run this job
        self._take_over()
        previous = signal.signal(NEWS, self.signal_sync.news)
        for line in self.run.group.channel.orders.values():
            line.announce(NEWS)
        undo.callback(signal.signal, NEWS, previous)
        undo.callback(self._give_back)

    @patch("signal:signal", why=WHY)
    def handle(self, call: Call) -> Any:
        """Set a handler of the script, to be called when all ranks are at the same point."""
        number: Any = call.named.get("signalnum")
        handler = call.named.get("handler")
        shared = _is_shared(number, handler)
        if not self._by_script() or not (shared or number in self.handlers):
            return call.plain()
        if number in self.handlers and self._can_sync():  # handle earlier signals first
            self.effects.ask_rank0(f"signals ({number})", lambda: None)
        previous = call.wrapped(number, self._received if shared else handler)
        current = self.handlers.pop(number, previous)
        if shared:
            self.handlers[number] = handler
        return current

    @patch("signal:getsignal", why="the script gets the handler that it has set")
    def handled(self, call: Call) -> Any:
        """Return the handler that the script has set."""
        handler = call.plain()
        if handler != self._received or self.signal_sync.act is None:
            return handler
        return self.handlers[int(call.args[0] if call.args else call.kwargs["signalnum"])]

    @patch(
        *("signal:raise_signal", "os:kill", "os:killpg"),
        why="all ranks handle a signal that the script sends to itself; only rank 0 sends one to "
        "another process, unless that is a child of the rank",
    )
    def send(self, call: Call) -> Any:
        """Run the handler of a signal that the process sends to itself at once.

        All ranks do so at the same point, so that they need not wait for each other.
        """
        values: tuple[Any, ...] = (*call.args, *call.kwargs.values())
        to, number = values if len(values) == 2 else (self.process, *values, None)[:2]
        to_self = call.target != "os:killpg" and to in (self.process, os.getpid())
        if not number or not self.effects.context.in_job():
            return call.plain()
        if not to_self:
            return None if self.rank and self._by_script() and not _is_child(to) else call.plain()
        blocked = number in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        if number in self.handlers and not blocked and self._can_sync():
            return self._act(int(number))
        return call.wrapped(*values[:-1] and [os.getpid()], number)

    def _can_sync(self) -> bool:
        return self.effects.mode() is not Mode.PASS_THROUGH and self.signal_sync.here()

    def _by_script(self) -> bool:
        if self.signal_sync.act is None or not self.context.in_job():
            return False
        return self.effects.mode(by=scripts()) is not Mode.PASS_THROUGH

    def _received(self, number: int, frame: FrameType | None) -> None:
        self.signal_sync.received(number)

    def _act(self, number: int) -> None:
        """Run the script's handler."""
        handler = self.handlers.get(number)
        if handler is None:  # removed meanwhile, on all ranks: use the current one
            os.kill(os.getpid(), number)
            return
        with self.effects.context.script():  # its effects are those of the script
            handler(number, users_frame())
        wakeup = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        if wakeup >= 0 and self.effects.context.in_job():
            os.write(wakeup, bytes([RETURNED + number]))

    def _take_over(self) -> None:
        """Replace the current handlers, to call them at the same point on all ranks."""
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if _is_shared(number, handler):
                self.handlers[number] = handler
                signal.signal(number, self._received)
        self.signal_sync.act = self._act

    def _give_back(self) -> None:
        """Install the script's handlers in the process again."""
        self.signal_sync.act = None
        for number, handler in self.handlers.items():
            if signal.getsignal(number) == self._received:
                signal.signal(number, handler)


def _is_shared(number: Any, handler: Any) -> bool:
    """Return whether a handler is a Python function, for a signal to the whole job."""
    ignored = isinstance(handler, signal.Handlers) or not callable(handler)
    return not ignored and number not in OWN


def _is_child(number: Any) -> bool:
    """Return whether the process with this id is a child of this one."""
    try:
        os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (OSError, TypeError):
        return False
    return True
