"""The start of a rank above 0 that is no fork: it runs the script from its first line on."""

from __future__ import annotations

import io
import json
import os
import random
import socket
import sys
from contextlib import ExitStack
from typing import NoReturn

from autoddp.comm.place import HERE
from autoddp.decorator.muted import muted
from autoddp.decorator.workers import ParentLink
from autoddp.process import worker
from autoddp.process.launcher_signals import live_with
from autoddp.process.script import Script, finish


def main(text: str) -> NoReturn:
    """Be such a rank in a new interpreter, by the instructions of rank 0, `text` in JSON."""
    told = json.loads(text)
    live_with(told["parent"])
    os.chdir(told["cwd"])
    post = HERE.post = ParentLink(told["rank"], told["size"], socket.socket(fileno=told["channel"]))
    post.channel.set_inheritable(False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    seed(told)
    post.guard = ExitStack()
    post.guard.enter_context(muted(post.rank, post.size))
    name, args, module = told["script"]
    worker.leave(finish(Script(name, tuple(args), module).run()))


def seed(told: dict[str, object]) -> None:
    """Set the generators that the system seeds, Python's and numpy's, to rank 0's first state."""
    version, words, gauss = told["random"]  # type: ignore[misc]
    random.setstate((version, tuple(words), gauss))  # type: ignore[has-type]
    if told["numpy"] is not None:
        import numpy

        numpy.random.set_state(tuple(told["numpy"]))  # type: ignore[arg-type]
