"""Which GPU each rank gets, and which backend follows from it."""

from __future__ import annotations

import pytest
import torch

from autoddp.errors import BadInput
from autoddp.process.devices import Devices, _asked, visible
from autoddp.process.joining import decide


def gpus(*names):
    return Devices("cuda", names, "nccl")


@pytest.mark.parametrize(
    ("value", "there", "names"),
    [
        (None, 0, []),
        (None, 3, ["0", "1", "2"]),
        ("-1", 3, []),
        ("2,0", 3, ["2", "0"]),
        ("0,9,1", 3, ["0"]),
        ("0,-1,1", 3, ["0"]),
        ("GPU-4f,MIG-77", 3, ["GPU-4f", "MIG-77"]),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(value, there, names):
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    assert visible(environ, there) == names


def test_devices_that_cannot_be_counted_are_not_used(monkeypatch):
    def broken():
        raise OSError("no driver")

    monkeypatch.setattr("torch.accelerator.device_count", broken)
    monkeypatch.setattr("autoddp.torch_internals.accelerator", lambda: torch.device("cuda"))
    assert _asked({}) == Devices()


@pytest.mark.parametrize(
    ("names", "ranks", "given"),
    [
        (("0", "1", "2"), 2, ("0", "1")),
        (("5",), 2, ("5", "5")),
        (("0", "1"), 3, ("0", "1", "0")),
    ],
)
def test_each_rank_is_given_its_own(names, ranks, given):
    assert tuple(gpus(*names).of(rank) for rank in range(ranks)) == given


@pytest.mark.parametrize(
    ("found", "places", "wanted", "choice"),
    [
        (Devices(), [""], "auto", ("gloo", "no GPU here")),
        (gpus("0", "1"), ["a 0", "a 1"], "auto", ("nccl", "a GPU for each rank")),
        (gpus("0"), ["a 0", "b 0"], "nccl", ("nccl", "a GPU for each rank")),
        (gpus("0"), ["a 0", "b 0"], "native", ("nccl", "a GPU for each rank")),
        (gpus("0", "1"), ["a 0", "a 1"], "gloo", ("gloo", "asked for")),
        (gpus("0"), ["a 0", "a 0"], "auto", ("gloo", "2 ranks share 1 GPU")),
        (
            gpus("0", "1"),
            ["a 0", "a 1", "a 0"],
            "auto",
            ("gloo", "3 ranks share 2 GPUs"),
        ),
    ],
)
def test_rank_0_decides_by_what_all_compute_on(found, places, wanted, choice):
    assert decide(found, places, wanted) == choice


@pytest.mark.parametrize(
    ("found", "places", "why"),
    [
        (Devices(), ["", ""], "no GPU here"),
        (gpus("0"), ["a 0", "a 0"], "2 ranks share 1 GPU"),
        (
            Devices("xpu", ("0", "1"), "xccl"),
            ["a 0", "a 1"],
            "the backend of xpu is xccl",
        ),
    ],
)
def test_what_ranks_cannot_use_is_refused(found, places, why):
    with pytest.raises(BadInput) as error:
        decide(found, places, "nccl")
    assert str(error.value) == f"--backend is nccl, but {why}; use --backend gloo"
