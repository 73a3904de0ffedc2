"""Runs of `verify` and `bench` are forked from one process that has imported torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autoddp.process.boot import BOOT
from autoddp.tools import runs
from tests.support import warm


@pytest.fixture(autouse=True, scope="session")
def forked_runs() -> Iterator[None]:
    """Start commands like a user, with runs that import torch themselves."""

    def start(runner: runs.Runner, results: Path, copy: Path, environ: dict[str, str]) -> int:
        argv = ("python", BOOT, runs.RECORDED, str(results / "task"))
        logs = [results / "out", results / "err"]
        return warm.shared().start(*argv, folder=copy, logs=logs, env=environ).wait(240)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs.Runner, "_start", start)
        yield
