"""What a signal's handler raises in the midst of a rule, as torch's does at the end of a worker."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from torch import Tensor

from autoddp.view.dispatch import _decision
from autoddp.view.local_call import GATHER_ONCE
from autoddp.view.table import FunctionRule


def _ends(number: int, frame: Any) -> None:
    raise RuntimeError("a worker has ended")


@pytest.fixture
def handled() -> Iterator[None]:
    before = signal.signal(signal.SIGCHLD, _ends)
    yield
    signal.signal(signal.SIGCHLD, before)


def _interrupted(*args: Any) -> None:
    signal.raise_signal(signal.SIGCHLD)


def _refused(*args: Any) -> None:
    raise RuntimeError("a shape that rows do not have")


@pytest.mark.usefixtures("handled")
def test_it_arrives_and_is_no_reason_to_gather():
    assert _decision(FunctionRule(_refused, False), Tensor.add, (), {}) is GATHER_ONCE
    with pytest.raises(RuntimeError, match="a worker has ended"):
        _decision(FunctionRule(_interrupted, False), Tensor.add, (), {})
