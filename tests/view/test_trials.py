"""A trial fits the memory that is there, allows for a device's rounding, drops nothing inside."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autoddp.view.proof.proofs import prove
from tests.support.ranks import run_ranks
from tests.view.compare import by_rows, difference
from tests.view.test_rows import installed

LIBC = ctypes.CDLL(None)


class Noting(nn.Module):
    """Tells a file how many rows it was given, past all that is put back after a trial."""

    def __init__(self, file: int) -> None:
        super().__init__()
        self.inner, self.norm, self.file = nn.Linear(6, 6), nn.BatchNorm1d(6), file

    def forward(self, x: Tensor) -> Tensor:
        text = f"{len(x)} {torch.is_grad_enabled()}\n".encode()
        LIBC.write(self.file, text, len(text))
        return self.norm(self.inner(x))


class Sloped(Noting):
    """One that takes a gradient itself."""

    def forward(self, x: Tensor) -> Tensor:
        z = x.detach().requires_grad_()
        return super().forward(x) + torch.autograd.grad(self.inner(z).pow(2).sum(), z)[0]


def said_of(view: Any) -> dict[str, list[str]]:
    """By kind: of what class, and what."""
    kinds: dict[str, list[str]] = {k: [] for k in ("split", "whole", "memory", "draws")}
    for d in view.report.decisions.values():
        kinds.setdefault(d.kind, []).append(f"{d.where.partition(' ')[0]}: {d.what}")
    return kinds


def _rows(group: Any, kind: type[Noting]) -> Any:
    with tempfile.NamedTemporaryFile() as file, installed(group) as view:
        torch.manual_seed(0)
        net = kind(os.open(file.name, os.O_WRONLY | os.O_APPEND))
        net(by_rows(torch.randn(48, 6), view.cut(48)))
        return len(view.report.of("split")), file.read().decode().splitlines()


@pytest.mark.parametrize("kind", [Noting, Sloped])
def test_as_many_rows_as_of_all_ranks_are_tried_without_gradients(kind):
    for split, noted in run_ranks(_rows, 2, kind):
        assert split == 1
        assert "48 False" in noted
        assert "24 True" in noted
        assert ("48 True" in noted) == (kind is Sloped)


class Hungry(nn.Module):
    """On a device with no room for copies of so many rows: a trial is seen by its modes."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.inner, self.room = nn.Linear(6, 6), room

    def forward(self, x: Tensor) -> Tensor:
        if torch._C._len_torch_dispatch_stack() and x[:, :1].nbytes > 8 * self.room:
            raise torch.OutOfMemoryError("out of memory")
        return self.inner(x)


def trained(net: nn.Module, total: int, batch: Callable[[Tensor], Tensor]) -> list[Any]:
    """Two calls and their gradients."""
    found: list[Any] = []
    for x in torch.randn(2, total, 6):
        net.zero_grad()
        out = net(batch(x))
        out.pow(2).mean().backward()
        found += [out, *(p.grad.clone() for p in net.parameters())]
    return found


def _compared(group: Any, make: Callable[[], nn.Module], total: int, rtol: float = 1e-9) -> Any:
    """What differs from one process, what was split or why not, and what was said."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    want = trained(make(), total, lambda x: x)
    with installed(group) as view:
        torch.manual_seed(0)
        got = trained(make(), total, lambda x: by_rows(x, view.cut(total)))
        return difference(want, got, rtol), said_of(view)


@pytest.mark.parametrize(("nproc", "total", "room"), [(2, 48, 20), (3, 5, 4)], ids=str)
def test_where_rows_do_not_fit_fewer_are_tried(nproc, total, room):
    for rank, (differs, said) in enumerate(
        run_ranks(_compared, nproc, lambda: Hungry(room), total)
    ):
        assert differs is None
        assert said["split"][0].startswith("Hungry: "), said
        assert not said["whole"], said
        tried = "15 rows, as 24 do" if nproc == 2 else f"{(4, 4, 3)[rank]} rows, as 5 do"
        assert said["memory"] == [f"Hungry: tried on {tried} not fit in memory"]


def test_where_no_rows_fit_it_runs_whole_and_is_asked_again():
    for differs, said in run_ranks(_compared, 2, lambda: Hungry(3), 48):
        assert differs is None
        assert said["whole"] == ["Hungry: there is not enough memory to try it"]


class Another(nn.Module):
    """A linear layer with another kernel for few rows: `few` makes its output of the usual one."""

    def __init__(
        self, dtype: torch.dtype, few: Callable[[Tensor], Tensor], layers: int = 6
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6, dtype=dtype) for _ in range(layers))
        self.dtype, self.few = dtype, few

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.dtype)
        for layer in self.layers:
            out = layer(x)
            few = x.nbytes <= 8 * x[:1].nbytes  # a kernel looks past Python
            x = (self.few(out) if few else out).tanh()
        return x.float()


def next_number(x: Tensor) -> Tensor:
    """As another order of sums may round."""
    return torch.nextafter(x, x + 1)


def scaled(by: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x * (1 + by)


class Sized(Another):
    """One that does depend on its size, a little."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + 3e-4 * len(x))


ROUNDED: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "halves inside": (lambda: Another(torch.bfloat16, next_number), True),
    "tf32 for few rows": (lambda: Another(torch.float32, scaled(4e-3)), True),
    "gross for few rows": (lambda: Another(torch.float32, scaled(5e-2)), False),
    "by its size": (lambda: Sized(torch.float32, scaled(0)), False),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_other_kernels_for_few_rows_are_allowed_for(name):
    make, splits = ROUNDED[name]
    for differs, said in run_ranks(_compared, 2, make, 48, 2e-2):
        assert differs is None
        outer = [line for line in said["split"] if line.startswith(make().__class__.__name__)]
        assert bool(outer) == splits, said


BY_DEVICE = hasattr(torch.backends.mkldnn, "matmul")  # torch up to 2.8 has one setting for both


def _tolerances(group: Any) -> Any:
    from autoddp.view.proof.rounding import tolerance

    kinds = {torch.float32}, {torch.float64}, {torch.float64, torch.bfloat16}, {torch.complex64}
    found = [tolerance(dtypes, "cuda") for dtypes in kinds]
    known = torch.backends
    if BY_DEVICE:
        known.cuda.matmul.fp32_precision = "ieee"
        known.cudnn.conv.fp32_precision = known.cudnn.rnn.fp32_precision = "ieee"
    else:
        known.cuda.matmul.allow_tf32 = known.cudnn.allow_tf32 = False
    found.append(tolerance({torch.float32}, "cuda"))
    if BY_DEVICE:
        known.cuda.matmul.fp32_precision = "tf32"  # after which the older name of it raises
    else:
        known.cuda.matmul.allow_tf32 = True
    found += [tolerance({torch.float32}, "cuda"), tolerance({torch.float32}, "cpu")]
    torch.set_float32_matmul_precision("medium")
    return [*found, tolerance({torch.float32}, "cpu"), tolerance({torch.float32}, "xpu")]


def test_the_tolerance_follows_what_the_device_computes_in():
    cpu = 1e-3 if BY_DEVICE else 1e-2  # CUDA's setting is the CPU's, too
    assert run_ranks(_tolerances, 1) == [[1e-2, 1e-7, 5e-2, 1e-2, 1e-3, 1e-2, cpu, 5e-2, 1e-2]]


class Fused(nn.Module):
    """Attention's way to drop: row i draws the i-th numbers of the stream, whatever the batch."""

    def __init__(self, name: str, probability: float) -> None:
        super().__init__()
        self.a, self.b, self.name, self.probability = (
            nn.Linear(6, 6),
            nn.Linear(6, 6),
            name,
            probability,
        )

    def forward(self, x: Tensor) -> Tensor:
        h = getattr(torch.ops.lab, self.name)(self.a(x), self.probability)
        return self.b(torch.nn.functional.dropout(h, 0.1))


def _fused(group: Any, name: str, probability: float) -> Any:
    library = torch.library.Library("lab", "DEF")
    for known, argument in (("attended", "dropout_p"), ("noised", "size")):
        tags = [torch.Tag.nondeterministic_seeded]
        library.define(f"{known}(Tensor x, float {argument}) -> Tensor", tags=tags)
        library.impl(known, lambda x, p: x * (torch.rand(x.shape) >= p) if p else x * 1, "CPU")
    with installed(group) as view:
        torch.manual_seed(0)
        net = Fused(name, probability).requires_grad_(False)
        net(by_rows(torch.randn(48, 6), view.cut(48)))
        return said_of(view)


def test_a_kernel_that_drops_inside_is_tried_without():
    for said in run_ranks(_fused, 2, "attended", 0.2):
        assert said["split"] == ["Fused: 24 of 48 rows here"]
        assert said["draws"] == [": attended draws inside its kernel: each rank draws its own rows"]


def test_a_kernel_that_drops_nothing_is_not_told_as_drawing():
    for said in run_ranks(_fused, 2, "attended", 0.0):
        assert said["split"] == ["Fused: 24 of 48 rows here"]
        assert not said["draws"]


def test_a_kernel_of_which_nothing_is_known_is_not_split():
    for said in run_ranks(_fused, 2, "noised", 0.2):
        assert said["whole"] == ["Fused: the forward of a part is not the part of the forward"]


@pytest.mark.parametrize(
    ("refused", "given"),
    [
        (True, {"num_layers": 2, "dropout": 0.1, "device": "meta"}),
        (False, {"num_layers": 2, "dropout": 0.1, "device": "cpu"}),
        (False, {"num_layers": 1, "device": "meta"}),
        (False, {"num_layers": 2, "device": "meta"}),
    ],
    ids=str,
)
def test_an_rnn_that_drops_on_a_device_is_not_tried(refused, given):
    net = nn.Sequential(nn.LSTM(4, 4, **given))
    try:
        reason = prove(None, net).reason  # type: ignore[arg-type]
    except AttributeError:  # it would have been tried
        reason = ""
    assert ("dropout between layers" in reason) == refused
    if refused:
        with pytest.raises(AttributeError):
            prove(None, net.eval())  # type: ignore[arg-type]


def _cast(group: Any) -> int:
    with installed(group) as view:
        torch.manual_seed(0)
        net = nn.Linear(6, 6).float()
        for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
            with torch.autocast("cpu", dtype):
                net(by_rows(torch.randn(48, 6).float(), view.cut(48)))
        return sum(d.count for d in view.report.of("split"))


def test_what_autocast_computes_in_is_proven_by_itself():
    assert run_ranks(_cast, 2) == [2, 2]
