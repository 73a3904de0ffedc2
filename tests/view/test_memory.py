"""Access to a batch's memory without torch functions gets the whole; writes are noticed."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from autoddp.view.rules.autograd import roots
from autoddp.view.rules.partial import unread
from tests.support.threads import run_threads
from tests.support.training import Scripts, assert_as_alone
from tests.view.compare import Counting, by_rows, difference

pytestmark = pytest.mark.slow

MODES: tuple[Callable[[], AbstractContextManager[Any]], ...] = (
    torch.enable_grad, torch.no_grad, torch.inference_mode,
)  # fmt: skip
CASES = Scripts()


def case(of_batch: Callable[[Tensor, nn.Module], Any]) -> None:
    """A script that calls a function with each of three batches, in each mode."""

    def in_modes() -> list[Any]:
        seen = []
        for mode in MODES:
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
            with mode():
                for (x,) in DataLoader(TensorDataset(torch.randn(22, 5)), 8):
                    given = of_batch(x, net)
                    seen += [given, x.sum().item(), net(x).sum().item(), x[-1].tolist()]
        return seen

    in_modes.__name__ = of_batch.__name__
    CASES(in_modes)


@case
def arrays(x: Tensor, net: nn.Module) -> Any:
    array = x.numpy()
    array *= 2
    before = net(x).sum().item()
    array[-1] = 7
    x.add_(1)
    memoryview(x.numpy()).cast("B").cast("d")[2] = 9.0
    torch.frombuffer(array, dtype=x.dtype)[0] = 4
    return before, torch.from_numpy(array.copy()), np.shares_memory(array, x.numpy())


@case
def views_that_were_gathered_alone(x: Tensor, net: nn.Module) -> Any:
    z = net(x)
    first, rest = z[:, :1], z[:, 1:]
    said = [first.tolist(), rest.tolist()]
    z.data.mul_(2)
    said += [first.tolist(), rest.tolist()]
    z.data[:, 0] = 5
    said += [first.tolist(), rest.tolist()]
    with torch.no_grad():
        z.add_(1)
    return [*said, first.tolist(), rest.tolist(), z.tolist()]


@case
def addresses(x: Tensor, net: nn.Module) -> Any:
    (ctypes.c_double * x.numel()).from_address(x.data_ptr())[3] = 5.0
    torch.tensor([], dtype=x.dtype).set_(x.untyped_storage())[0] = 100
    out = net(x).detach()
    numbers = (ctypes.c_double * out.numel()).from_address(out.data_ptr())
    before = list(numbers)
    numbers[1] = 2.0
    return before, out.sum().item(), x.is_shared(), x.share_memory_() is x, x.is_shared()


@case
def dlpack(x: Tensor, net: nn.Module) -> Any:
    torch.from_dlpack(x).mul_(2)
    torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))[0] = 4
    return float(np.from_dlpack(x).sum())


@case
def copies(x: Tensor, net: nn.Module) -> Any:
    same, other = copy.copy(x), copy.deepcopy(x)
    same += 1
    other += 2
    x.data[0] = 3
    return same.sum().item(), other.sum().item(), x.real is x, torch.as_tensor(x) is x


@case
def copies_of_views(x: Tensor, net: nn.Module) -> Any:
    """What shares memory does so in the copies, too, and a leaf's copy is a leaf."""
    first, column, again, other = copy.deepcopy([x, x[:, 1], x, x.clone()])
    first[:, 1] = 9
    other += 1
    seen = [column.tolist(), again is first, column.stride(), other.sum().item(), x.sum().item()]
    if torch.is_grad_enabled():
        leaf = x.detach().requires_grad_()
        net(leaf).sum().backward()
        made, detached = copy.deepcopy([leaf, leaf.detach()])
        detached.zero_()
        seen += [made.is_leaf, made.grad.sum().item(), made.sum().item(), leaf.grad.sum().item()]
        with pytest.raises(RuntimeError, match="graph leaves"):
            copy.deepcopy(net(x))
    return seen


@case
def wide_then_narrow(x: Tensor, net: nn.Module) -> Any:
    wide, flat, narrow = x.numpy(), x.view(-1).numpy(), x[:, 1:].numpy()
    wide[0, 0], flat[1], narrow[-1] = 100, 50, 7
    return x.sum().item(), float(wide.sum()), float(flat.sum()), float(narrow.sum())


@case
def narrow_then_wide(x: Tensor, net: nn.Module) -> Any:
    column = x[:, 0]
    narrow, first = x[:, 1:].numpy(), column.sort()[0][0].item()
    wide = x.numpy()
    narrow[-1] = 7
    seen = x.sum().item()
    wide[0, 0] = 100  # a row of one rank alone
    return (
        first,
        seen,
        column.sort()[0].tolist(),
        x.sum().item(),
        float(narrow.sum()),
        float(wide.sum()),
    )


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return 2 * grads[0]


class Raised(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.numpy()[:] += 1
        return x.cumsum(0)


@case
def functions(x: Tensor, net: nn.Module) -> Any:
    return Doubled.apply(x) is x, Raised.apply(x).sum().item()


LIBRARY = torch.library.Library("autoddp_tests", "DEF")
LIBRARY.define("reversed(Tensor x) -> Tensor")
LIBRARY.impl("reversed", lambda x: x.flip(0) + len(x), "CompositeExplicitAutograd")
LIBRARY.define("poke_(Tensor(a!) x) -> Tensor(a!)")


def _poke(x: Tensor) -> Tensor:
    x.numpy()[0] = 5
    return x


LIBRARY.impl("poke_", _poke, "CPU")


@torch.library.custom_op("autoddp_tests::scale_", mutates_args={"x"})
def scale_(x: Tensor) -> None:
    x.numpy()[:] *= 2


@case
def operators(x: Tensor, net: nn.Module) -> Any:
    out = net(x).detach()
    torch.ops.autoddp_tests.poke_(x)
    scale_(x)
    scale_(out)
    torch.ops.aten.add_.Tensor(x, 1)
    return torch.ops.autoddp_tests.reversed(x)[0].tolist(), out.sum().item()


class WritesItsInput(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.relu_())


@case
def modules(x: Tensor, net: nn.Module) -> Any:
    array, module = x.numpy(), WritesItsInput(5, 3)
    first = module(x).sum().item()
    x -= 1
    return first, module(x).sum().item(), float(array.sum())


@case
def cut_by_hand(x: Tensor, net: nn.Module) -> Any:
    module, data = WritesItsInput(5, 3), torch.arange(60.0).view(12, 5) - 30
    for batch in data.split(4):
        module(batch)
        batch -= 3
        module(batch)
    return data.sum().item(), data.tolist()


ALONE: list[dict[str, Any]] = []


@pytest.mark.parametrize("nproc", [2, 3])
def test_memory_equals_that_of_one_process(nproc):
    if not ALONE:
        ALONE.append(CASES.run(1))
    ranks = CASES.run(nproc)
    for name, (alone,) in ALONE[0].items():
        assert_as_alone(alone, ranks[name])


def _detached_often(group: Any) -> list[int]:
    batch, counts = by_rows(torch.ones(4, 3), Counting(group).even_sizes(4)), []
    kept = batch.detach()
    for _ in range(3):
        for _ in range(5):
            kept.view(-1)[0] = 2.0  # exports the whole, and leaves a dead base behind
            batch.detach().view(-1)[1:5].mul_(2)
            batch.data.numpy()
            batch.add_(1)
        counts.append(len(batch.based.detached or ()))
    return counts


def test_a_batch_that_is_detached_often_keeps_nothing_of_it():
    assert run_threads(_detached_often, 2) == [[1, 1, 1]] * 2


def _saved_and_written(cut: Callable[[Tensor], Tensor]) -> list[Any]:
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).view(4, 3).requires_grad_()
    z = cut(x) * 2
    y, spread = z.cos(), z.unsqueeze(0).expand(2, 4, 3).detach()
    z.data.view(-1)[:5].fill_(0.25)  # torch does not see it, and the backward reads it
    loss = y.sum()
    if unread(loss):
        loss.owner.pull()
    torch.autograd.backward(*roots(loss, None))  # as `Gradients` does, which is not here
    first = spread.view(2, 4, 3)[0]
    spread.sum().item()
    spread.fill_(0.5)
    flat = z.detach().flatten()
    flat.data.view(-1)[:3].fill_(0.75)
    flat.t_()  # changes nothing, and writes nothing
    return [x.grad, first.tolist(), z.tolist(), flat.sort().values.tolist()]


def _copied(cut: Callable[[Tensor], Tensor]) -> list[Any]:
    turned = cut(torch.arange(6.0).view(2, 3)).transpose(0, 1) + 1
    copy = turned.contiguous()
    turned.mul_(2)
    return [copy.tolist(), turned.tolist()]


def _copied_in_ranks(group: Any) -> list[str | None]:
    said, view = [], Counting(group)
    for sizes in ((1, 1), (2, 0)):
        got = _copied(lambda x, s=sizes: by_rows(x, view.shard_sizes(s)))
        said.append(difference(_copied(lambda x: x), got))
    return said


def test_a_contiguous_copy_of_a_single_row_has_memory_of_its_own():
    assert run_threads(_copied_in_ranks, 2) == [[None, None]] * 2


def _in_ranks(group: Any) -> str | None:
    want = _saved_and_written(lambda x: x)
    grad, *got = _saved_and_written(lambda x: by_rows(x, Counting(group).even_sizes(4)))
    return difference(want, [group.all_reduce(grad.clone()) / group.size, *got])


def test_what_is_written_into_memory_reaches_a_backward():
    assert run_threads(_in_ranks, 2) == [None] * 2


def test_replaced_memory_raises_and_scripted_functions_get_the_whole():
    scripts = Scripts(set_=_set, scripted=_scripted)
    (alone,), ranks = scripts.run(1)["scripted"], scripts.run(2)
    assert_as_alone(alone, ranks["scripted"])
    assert all(
        "set_ gives a batch of shape (8, 5) other memory in place" in seen.error
        for seen in ranks["set_"]
    )


def _set() -> None:
    (x,) = next(iter(DataLoader(TensorDataset(torch.randn(22, 5)), 8)))
    x.set_(torch.ones(8, 5))


def _scripted() -> Any:
    scripted = torch.jit.script(_coupled)
    net = nn.Linear(5, 3)
    for (x,) in DataLoader(TensorDataset(torch.randn(22, 5)), 8):
        scripted(net(x)).backward()
    return net.weight.grad


def _coupled(x: Tensor) -> Tensor:
    return x.cumsum(0).pow(2).sum() / x.size(0)
