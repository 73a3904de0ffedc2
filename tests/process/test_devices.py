"""Which GPU each rank gets, and which backend follows from it."""

from __future__ import annotations

import pytest

from autoddp.errors import BadInput
from autoddp.process.backend import Choice, decide
from autoddp.process.devices import Devices, share, visible


def gpus(*names):
    return Devices("cuda", names, "nccl")


def of(found, ranks):
    return tuple(found.of(rank) for rank in range(ranks))


@pytest.mark.parametrize(
    ("value", "there", "names"),
    [
        (None, 0, []),
        (None, 3, ["0", "1", "2"]),
        ("-1", 3, []),
        ("2,0", 3, ["2", "0"]),
        ("0,9,1", 3, ["0"]),
        ("0,0", 3, []),
        ("0,-1,1", 3, ["0"]),
        ("GPU-4f,MIG-77", 3, ["GPU-4f", "MIG-77"]),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(value, there, names):
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    assert visible(environ, there) == names


@pytest.mark.parametrize(
    ("names", "ranks", "wanted", "given"),
    [
        (("0", "1", "2"), 2, "nccl", ("0", "1")),
        (("0", "1", "2"), 2, "native", ("0", "1")),
        (("5",), 2, "auto", ("5", "5")),
        (("0", "1"), 3, "auto", ("0", "1", "0")),
    ],
)
def test_each_rank_is_given_its_own(names, ranks, wanted, given):
    assert of(share(gpus(*names), ranks, wanted), ranks) == given


@pytest.mark.parametrize(
    ("found", "places", "wanted", "choice"),
    [
        (Devices(), [""], "auto", Choice("gloo", "no GPU here")),
        (gpus("0", "1"), ["a 0", "a 1"], "auto", Choice("nccl", "a GPU for each rank", "cuda")),
        (gpus("0"), ["a 0", "b 0"], "nccl", Choice("nccl", "a GPU for each rank", "cuda")),
        (gpus("0", "1"), ["a 0", "a 1"], "gloo", Choice("gloo", "asked for", "cuda")),
        (gpus("0"), ["a 0", "a 0"], "auto", Choice("gloo", "2 ranks share 1 GPU", "cuda")),
        (
            gpus("0", "1"),
            ["a 0", "a 1", "a 0"],
            "auto",
            Choice("gloo", "3 ranks share 2 GPUs", "cuda"),
        ),
    ],
)
def test_rank_0_decides_by_what_all_compute_on(found, places, wanted, choice):
    assert decide(found, places, wanted) == choice


def test_what_ranks_cannot_use_is_refused():
    with pytest.raises(BadInput) as error:
        decide(gpus("0"), ["a 0", "a 0"], "nccl")
    assert str(error.value) == "--backend is nccl, but 2 ranks share 1 GPU; use --backend gloo"


def test_several_gpus_for_each_rank():
    found = gpus("0", "1", "2", "7")
    two = share(found, 2, "auto", 2)
    assert decide(two, ["a 0,1", "a 2,7"]) == Choice("nccl", "2 GPUs for each rank", "cuda")
    assert of(two, 2) == ("0,1", "2,7")
    assert of(share(found, 1, "gloo", 3), 1) == ("0,1,2",)
    with pytest.raises(
        BadInput, match=r"^--gpus-per-rank is 3, which with 2 ranks takes 6 GPUs, but this machine"
    ):
        share(found, 2, "auto", 3)
    with pytest.raises(BadInput, match=r"but this machine shows 0 GPUs; leave it out$"):
        share(Devices(), 1, "auto", 2)


def test_nccl_needs_a_gpu_for_each():
    with pytest.raises(
        BadInput,
        match=r"^--backend is nccl, which needs a device of its own for each of 2 ranks, but this "
        r"machine shows 1 GPU \(nccl\); use --backend gloo$",
    ):
        share(gpus("0"), 2, "nccl")
    share(gpus("0"), 2, "nccl", own=True)  # known once all ranks have sent their devices
