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
    facts = json.loads(text)
    live_with(facts["parent"])
    os.chdir(facts["cwd"])
    post = HERE.post = ParentLink(
        facts["rank"], facts["size"], socket.socket(fileno=facts["channel"])
    )
    post.channel.set_inheritable(False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    seed(facts)
    post.guard = ExitStack()
    post.guard.enter_context(muted(post.rank, post.size))
    name, args, module = facts["script"]
    worker.leave(finish(Script(name, tuple(args), module).run()))


def seed(facts: dict[str, object]) -> None:
    """Set the generators that the system seeds, Python's and numpy's, to rank 0's first state."""
    version, words, gauss = facts["random"]  # type: ignore[misc]
    random.setstate((version, tuple(words), gauss))  # type: ignore[has-type]
    if facts["numpy"] is not None:
        import numpy

        numpy.random.set_state(tuple(facts["numpy"]))  # type: ignore[arg-type]
