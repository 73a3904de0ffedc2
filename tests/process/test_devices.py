"""Which GPU each rank gets, and which backend follows from it."""

from __future__ import annotations

import pytest

from autoddp.errors import BadInput
from autoddp.process.backend import Choice, RankDevice, decide
from autoddp.process.devices import There, share, visible

HALF = ", each at most 1/2 of the memory"


def gpus(*names):
    return There("cuda", names, "nccl")


def told(*devices, host="a", **given):
    """What ranks say that compute on these, empty for none."""
    return [
        RankDevice(
            host,
            device,
            *(("cuda", "nccl") if device else ("", "")),
            **given,
        )
        for device in devices
    ]


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
    found = share(gpus(*names) if names else There(), ranks, wanted)
    assert found.visible == given


@pytest.mark.parametrize(
    ("ranks", "wanted", "choice"),
    [
        ([RankDevice("a")], "auto", Choice("gloo", "no GPU here")),
        (told("x", "y"), "auto", Choice("nccl", "a GPU for each rank", kind="cuda", alone=True)),
        (told("x", "y", each=2), "auto", Choice("nccl", "2 GPUs for each rank", kind="cuda")),
        (
            told("x") + told("x", host="b"),
            "nccl",
            Choice("nccl", "a GPU for each rank", kind="cuda", alone=True),
        ),
        (told("x", "y"), "gloo", Choice("gloo", "asked for", kind="cuda")),
        (told("x", "x"), "auto", Choice("gloo", f"2 ranks share 1 GPU{HALF}", 0.5, "cuda")),
        (told("x", "y", "x"), "auto", Choice("gloo", f"3 ranks share 2 GPUs{HALF}", 0.5, "cuda")),
    ],
)
def test_rank_0_decides_by_what_all_compute_on(ranks, wanted, choice):
    """As four tasks of SLURM do, each of which is shown a GPU of its own under the same name."""
    assert decide(ranks, wanted) == choice


def test_what_ranks_cannot_use_is_refused():
    with pytest.raises(BadInput) as error:
        decide(told("x", "x"), "nccl")
    assert str(error.value) == "--backend is nccl, but 2 ranks share 1 GPU; use --backend gloo"


def test_several_gpus_for_each_rank():
    found = gpus("0", "1", "2", "7")
    assert share(found, 2, "auto", 2).visible == ("0,1", "2,7")
    assert share(found, 1, "gloo", 3).visible == ("0,1,2",)
    with pytest.raises(
        BadInput, match=r"^--gpus-per-rank is 3, which with 2 ranks takes 6 GPUs, but this machine"
    ):
        share(found, 2, "auto", 3)
    with pytest.raises(BadInput, match=r"but this machine shows 0 GPUs; leave it out$"):
        share(There(), 1, "auto", 2)


def test_nccl_needs_a_gpu_for_each():
    with pytest.raises(
        BadInput,
        match=r"^--backend is nccl, which needs a device of its own for each of 2 ranks, but this "
        r"machine shows 1 GPU \(nccl\); use --backend gloo$",
    ):
        share(gpus("0"), 2, "nccl")
    assert share(gpus("0"), 2, "nccl", own=True).visible == ("0", "0")  # known once all have met
