"""Write the file of one rank: a line of JSON for each step, and one at the end."""

from __future__ import annotations

import json
import os
import threading
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from autoddp.comm.world import World
from autoddp.tools.record.numbers import Numbers
from autoddp.tools.record.recording import LINES, Entry
from autoddp.tools.record.times import Times, around

if TYPE_CHECKING:
    from autoddp.tools.record.script import RecordedScript


class Recorder:
    """The recorder of one rank.

    Its file is made at the first step, after every rank has checked that there is no recording yet.
    """

    def __init__(self, script: RecordedScript, world: World) -> None:
        self.script, self.world = script, world
        self.process, self.thread = os.getpid(), threading.get_ident()
        self.part = Numbers() if script.numbers else Times(world, self.on_own_thread)
        self.count, self.depth, self.began = 0, 0, perf_counter()
        self.file: int | None = None

    def on_own_thread(self) -> bool:
        """Return whether this is the rank's own thread, and no graph is being compiled."""
        own = (os.getpid(), threading.get_ident()) == (self.process, self.thread)
        return own and not torch.compiler.is_compiling()

    def setup(self, undo: ExitStack) -> None:
        """Record all steps and backward passes from here on."""
        around(undo, torch.autograd, "backward", self.backward)
        self.part.setup(undo)
        undo.callback(register_optimizer_step_post_hook(self.end).remove)

    def backward(self, plain: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a backward pass, and record its roots as losses."""
        if self.depth or not self.on_own_thread():
            return plain(tensors, *args, **kwargs)
        self.depth += 1
        try:
            with self.part.backward([tensors] if isinstance(tensors, Tensor) else list(tensors)):
                return plain(tensors, *args, **kwargs)
        finally:
            self.depth -= 1

    def end(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Write the line of a step.

        Raises:
            SystemExit: This was the last step to record.
        """
        entry = self.part.step(optimizer) if self.on_own_thread() else {}
        if not entry:
            return
        self.count += 1
        self._write({"step": self.count} | entry)
        if self.script.steps is not None and self.count >= self.script.steps:
            raise SystemExit(0)

    def close(self, code: int, raised: BaseException | None = None) -> None:
        """Write the last line, with the exit code and exception of the script."""
        if os.getpid() != self.process:
            return
        error = raised and traceback.format_exception_only(raised)[-1].strip()
        end = {"raised": error, "exit": code, "seconds": round(perf_counter() - self.began, 3)}
        self._write({"ended": True} | end | self.part.rest(raised))
        assert self.file is not None
        os.close(self.file)

    def _write(self, entry: Entry) -> None:
        if self.file is None:
            folder, rank = self.script.records, self.world.rank
            os.makedirs(folder, exist_ok=True)  # the script may have removed it
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
            self.file = os.open(os.path.join(folder, f"{rank}{LINES}"), flags, 0o644)
            about = {"script": self.script.name, "arguments": self.script.args}
            self._write(about | {"view": self.script.options.view, "ranks": self.world.world_size})
        os.write(self.file, json.dumps(entry).encode() + b"\n")
