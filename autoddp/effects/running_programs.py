"""Programs that rank 0 runs for all; the others hold a `Popen` that has no process of its own."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from autoddp.comm.place import HERE
from autoddp.comm.world import as_found, without
from autoddp.effects.engine import Effects, Mode
from autoddp.effects.output_files import COPIES, OutputFiles
from autoddp.effects.pipes import SharedRaw, bare, layered
from autoddp.effects.unhurried import Unhurried, carried, taken
from autoddp.patching import Call
from autoddp.report import is_users, users_line

ASYNCIO = os.path.dirname(asyncio.__file__) + "/"
STREAMS = ("stdin", "stdout", "stderr")


class RunningPrograms:
    """The programs that rank 0 has started, and their answers."""

    def __init__(self, effects: Effects) -> None:
        self.effects, self.unhurried = effects, Unhurried(effects, "programs")
        self._known: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._pipes: weakref.WeakKeyDictionary[Any, dict[str, SharedRaw]] = (
            weakref.WeakKeyDictionary()
        )
        self._output: weakref.WeakKeyDictionary[Any, OutputFiles] = weakref.WeakKeyDictionary()
        self._count = 0

    def has(self, process: Any) -> bool:
        """Return whether `process` is one process for all ranks."""
        return process in self._known

    def start(self, mode: Mode, process: Any, call: Call) -> None:
        """Run `Popen.__init__` on rank 0, in the script's order once all ranks are here."""
        name = self._name(mode, repr(call.named.get("args")))
        piped = [stream for stream in STREAMS if call.named.get(stream) == subprocess.PIPE]
        own: dict[str, Any] = {}

        def act() -> list[Any]:
            env = call.named.get("env")
            with plain_world():
                call.plain() if env is None else call.changed(env=without(env, HERE.given))
            own.update((stream, bare(getattr(process, stream))) for stream in piped)
            pipes = {stream: [raw.name, raw._blksize] for stream, raw in own.items()}
            return [process.pid, process.encoding, bool(process.text_mode), pipes]

        if mode is Mode.SYNCED:
            output = OutputFiles(self.effects, call.named)
            answer = self.effects.do_on_rank0("subprocess.Popen", act, tell=list)
            self._output[process] = output
        else:
            answer = self.unhurried.tell(mode, "subprocess.Popen", name, act, wait=False)
        *facts, pipes = answer
        if self.effects.rank:
            _describe(process, call.named, *facts)
        self._known[process], self._pipes[process] = name, {}
        for stream, (number, size) in pipes.items():
            place, writes = f"{name}/{stream}", stream == "stdin"
            raw = SharedRaw(own.get(stream), self.unhurried, place, number, writes)
            setattr(process, stream, layered(raw, process, call.named.get("bufsize"), size))
            self._pipes[process][stream] = raw

    def ask(self, process: Any, what: str, act: Callable[[], Any]) -> Any:
        """Return what rank 0's process answers; all learn at once whether it has ended."""
        mode = self.unhurried.mode()
        if mode is Mode.PASS_THROUGH and self.effects.rank and what in ("poll", "wait"):
            return process.returncode

        pipes = self._pipes[process]
        if what == "communicate" and process.stdin and not process.stdin.closed:
            with suppress(BrokenPipeError):  # as rank 0's would do, and the others shall have, too
                process.stdin.flush()

        def asked() -> list[Any]:
            try:
                value, late = act(), None
            except subprocess.TimeoutExpired as error:
                value, late = [error.output, error.stderr], error.timeout
            pair = [carried(x) for x in value] if isinstance(value, (tuple, list)) else value
            # other pipes are closed by the script, by each rank when it comes there
            over = pipes.items() if what == "communicate" else ()
            closed = [stream for stream, raw in over if raw.closed]
            return [process.returncode, closed, pair, late]

        answer = self.unhurried.tell(mode, f"Popen.{what}", f"{self._known[process]}/{what}", asked)
        code, closed, value, late = answer
        process.returncode = code
        for stream in closed if self.effects.rank else ():
            pipes[stream].close()
        if code is not None:
            if mode is Mode.SYNCED and process in self._output:
                self._output.pop(process).bring()
            see(self.effects)
        if not isinstance(value, list):
            return value
        out, err = map(taken, value)
        if late is not None:
            raise subprocess.TimeoutExpired(process.args, late, output=out, stderr=err)
        return out, err

    def run(self, mode: Mode, what: str, asked: str, act: Callable[[], Any]) -> Any:
        """Run a function that starts a program, on rank 0 once all ranks are here."""

        def plain() -> Any:
            with plain_world():
                return act()

        answer = self.unhurried.tell(
            mode, what, self._name(mode, what + asked), plain, meet=True, wait=False
        )
        see(self.effects)
        return answer

    def _name(self, mode: Mode, asked: str) -> str:
        """Return the name by which all ranks know the program.

        Threads come in any order: the line and what is asked for tell which is which.
        """
        if mode is Mode.UNSYNCED:
            return f"{users_line(2)}/{hashlib.sha1(asked.encode(errors='replace')).hexdigest()}"
        self._count += 1
        return f"program {self._count}"


def for_asyncio() -> bool:
    """Return whether asyncio makes this call for the script."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not is_users(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith(ASYNCIO):
            return True
        frame = frame.f_back
    return False


def see(effects: Effects) -> None:
    """Drop this rank's copies of what is on the disk, unless they are still open here.

    A program has run: what is on the disk is newer. What a thread has made stays this rank's own:
    rank 0's is in no order with the script, see `Journal`.
    """
    scratch = effects.scratch
    if not effects.rank or not scratch.overlay or not effects.context.in_job():
        return
    with effects.context.internal():
        open_here = (
            link for link in Path("/proc/self/fd").iterdir() if int(link.name) not in COPIES
        )
        held = {os.path.realpath(link) for link in open_here}
        for path, at in list(scratch.overlay.items()):
            if (
                path not in scratch.apart
                and os.path.lexists(path)
                and os.path.realpath(at) not in held
            ):
                scratch.drop(path)


def plain_world() -> AbstractContextManager[None]:
    """Give programs that are started inside the environment that one process would give them."""
    return as_found(HERE.given)


def _describe(
    process: Any, named: dict[str, Any], pid: int, encoding: str | None, text: bool
) -> None:
    """Set what `Popen.__init__` sets, but without a process: `_child_created` stays false."""
    process.args, process.pid, process.returncode = named["args"], pid, None
    process.stdin = process.stdout = process.stderr = None
    process.encoding, process.errors, process.text_mode = encoding, named.get("errors"), text
    process.pipesize = named.get("pipesize", -1)
    process._waitpid_lock = threading.Lock()
    process._input, process._communication_started = None, False
    process._sigint_wait_secs = 0  # after Ctrl-C nothing is left here to be waited for
