"""Which GPU each rank gets, and which backend follows from it."""

from __future__ import annotations

import pytest

from autoddp.errors import BadInput
from autoddp.launching.gpus import Devices, count, share, visible, without_cuda

HALF = ", each at most 1/2 of the memory"


@pytest.mark.parametrize(
    ("value", "there", "names"),
    [
        (None, 0, []),
        (None, 3, ["0", "1", "2"]),
        ("", 3, []),
        ("-1", 3, []),
        ("2,0", 3, ["2", "0"]),
        (" 1 , 2", 3, ["1", "2"]),
        ("0,9,1", 3, ["0"]),
        ("0,-1,1", 3, ["0"]),
        ("GPU-4f,MIG-77", 3, ["GPU-4f", "MIG-77"]),
        ("GPU-4f", 0, []),
        ("nonsense", 3, []),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(value, there, names):
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    assert visible(environ, there) == names


@pytest.mark.parametrize(
    ("names", "ranks", "wanted", "devices"),
    [
        ([], 2, "auto", Devices("gloo", "no GPU here")),
        ([], 2, "gloo", Devices("gloo", "no GPU here")),
        (["0", "1"], 2, "auto", Devices("nccl", "a GPU for each rank", ("0", "1"))),
        (["0", "1", "2"], 2, "nccl", Devices("nccl", "a GPU for each rank", ("0", "1"))),
        (["4", "6"], 2, "gloo", Devices("gloo", "asked for", ("4", "6"))),
        (["5"], 2, "auto", Devices("gloo", f"2 ranks share 1 GPU{HALF}", ("5", "5"), 0.5)),
        (["0", "1"], 3, "auto", Devices("gloo", f"3 ranks share 2 GPUs{HALF}", ("0", "1", "0"), 0.5)),
    ],
)
def test_backend_and_why(names, ranks, wanted, devices):
    assert share(names, ranks, wanted) == devices


def test_several_gpus_for_each_rank():
    names = ["0", "1", "2", "7"]
    assert share(names, 2, "auto", 2) == Devices("nccl", "2 GPUs for each rank", ("0,1", "2,7"))
    assert share(names, 1, "gloo", 3) == Devices("gloo", "asked for", ("0,1,2",))
    with pytest.raises(
        BadInput, match=r"^--gpus-per-rank is 3, which with 2 ranks takes 6 GPUs, but this machine"
    ):
        share(names, 2, "auto", 3)
    with pytest.raises(BadInput, match=r"but this machine shows 0 GPUs; leave it out$"):
        share([], 1, "auto", 2)


def test_nccl_needs_a_gpu_for_each():
    with pytest.raises(
        BadInput,
        match=r"^--backend is nccl with 2 ranks, but this machine shows 1 GPU, and NCCL needs one "
        r"for each rank; use --backend gloo or --nproc 1$",
    ):
        share(["0"], 2, "nccl")


def test_a_torch_without_cuda_talks_by_gloo():
    assert without_cuda("auto") == Devices("gloo", "this torch is built without CUDA")
    with pytest.raises(BadInput, match=r"^--backend is nccl, but this torch is built without it"):
        without_cuda("nccl")


def test_counting_does_not_need_a_driver():
    assert count() >= 0
