"""The writer of a rank's part of a recording: a line of JSON a step, and one at the end."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from autoddp.comm.world import World
from autoddp.tools.record.numbers import Numbers
from autoddp.tools.record.recording import Entry, RecordSettings, write, write_about
from autoddp.tools.record.times import Times, around


class Enough(SystemExit):
    """The end of a script, with exit code 0, after as many steps as were asked for."""

    def __init__(self) -> None:
        super().__init__(0)


class Recorder:
    """The recorder of one rank, of which rank 0's says what there is of the run as a whole.

    Its file is made at the first step, not before: then all ranks have met, and each has looked
    whether there is a recording already before it came to meet them.
    """

    def __init__(self, settings: RecordSettings, world: World, about: Entry) -> None:
        self.settings, self.rank, self.about = settings, world.rank, about
        self.process = os.getpid()
        self.numbers = Numbers() if settings.numbers else None
        self.times = Times(world, self.here) if settings.times else None
        self.count, self.depth, self.began = 0, 0, perf_counter()
        self.file: int | None = None

    def here(self) -> bool:
        """Return whether this is the rank's own process, and no graph is being compiled."""
        return os.getpid() == self.process and not torch.compiler.is_compiling()

    def setup(self, undo: ExitStack) -> None:
        """Look at every step, and all that leads to it, from here on."""
        around(undo, torch.autograd, "backward", self.backward)
        if self.times is not None:
            self.times.setup(undo)
        undo.callback(register_optimizer_step_pre_hook(self.begin).remove)
        undo.callback(register_optimizer_step_post_hook(self.end).remove)

    def backward(self, plain: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a backward, and note the losses at its root."""
        if self.depth or not self.here():
            return plain(tensors, *args, **kwargs)
        if self.numbers is not None:
            self.numbers.note([tensors] if isinstance(tensors, Tensor) else list(tensors))
        if self.times is not None:
            self.times.note()
        self.depth += 1
        try:
            return plain(tensors, *args, **kwargs)
        finally:
            self.depth -= 1
            if self.times is not None:
                self.times.backward_ended()

    def begin(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Look at what a step is made of."""
        if not self.here():
            return
        if self.numbers is not None:
            with self._apart():
                self.numbers.begin(optimizer)
        if self.times is not None:
            self.times.begin()

    def end(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Write the line of a step.

        Raises:
            Enough: It is the last one that was asked for.
        """
        if not self.here():
            return
        entry: Entry = {}
        if self.times is not None and (spent := self.times.step()):
            entry["times"] = spent
        with self._apart():
            if self.numbers is not None:
                entry |= self.numbers.step(optimizer)
            if not entry:
                return
            self.count += 1
            self._write({"step": self.count} | entry)
        if self.settings.steps is not None and self.count >= self.settings.steps:
            raise Enough

    def _apart(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.times is None else self.times.apart()

    def close(self, code: int, raised: BaseException | None = None) -> None:
        """Write the line at the end, with what no step followed, and how the script ended."""
        if os.getpid() != self.process:
            return
        said = raised and traceback.format_exception_only(raised)[-1].strip()
        entry: Entry = {"ended": True, "raised": said}
        for part in (self.numbers, self.times):
            if part is not None:
                entry |= part.rest(raised)
        self._write(entry)
        assert self.file is not None
        os.close(self.file)
        self._tell(code)

    def _tell(self, code: int | None) -> None:
        if self.rank == 0:
            seconds = round(perf_counter() - self.began, 3)
            write_about(self.settings.folder, self.about | {"exit": code, "seconds": seconds})

    def _write(self, entry: Entry) -> None:
        if self.file is None:
            self._tell(None)
            self.file = write(self.settings.folder, f"{self.rank}.jsonl")
        os.write(self.file, json.dumps(entry).encode() + b"\n")
