"""Every operator of torch's OpInfo database is equal on rows and on the whole batch."""

from __future__ import annotations

import importlib
import random
import warnings
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from autoddp.view import ShardedTensor, table
from autoddp.view.local_call import LocalCall
from tests.support.ranks import run_ranks
from tests.view.compare import Counting, by_rows, copy, difference, gradient_difference

pytestmark = pytest.mark.slow

UNWRITTEN = (
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
)
EXEMPT = dict.fromkeys(UNWRITTEN, "returns memory that nobody has written") | {
    "resize_": "refused: rows cannot be given other memory",
    "resize__": "the same",
    "resize_as_": "refused: rows cannot be given other memory",
    "as_strided_": "refused: rows cannot be given other memory",
    "cov": "its gradient by the weights cancels to noise",
}
# a kernel that takes the last dimension for the innermost
CONTIGUOUS = ("torch.ops.aten._scaled_dot_product_flash_attention_for_cpu",)
DATABASE = "torch.testing._internal.common_methods_invocations"  # takes seconds to import
FLOOR = 0.36  # of the calls in float64 that stay by rows


@dataclass(frozen=True)
class Pass:
    """How operators are called: dtype, samples of each, shard dimension, every n-th operator.

    With `turned`, the first dimension of the batch is the innermost in memory.
    """

    dtype: torch.dtype = torch.float64
    count: int = 1
    at: int = 0
    inplace: bool = False
    every: int = 1
    turned: bool = False


@dataclass
class Found:
    """The results of all operators."""

    calls: Counter = field(default_factory=Counter)
    operators: dict[str, set[str]] = field(default_factory=dict)
    differ: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kinds = self.operators.values()
        sharded = sum(k == {"sharded"} for k in kinds)
        mixed = sum(len(k) > 1 for k in kinds)
        gather = sorted(name for name, k in self.operators.items() if k == {"gathering"})
        return (
            f"{len(kinds)} operators: {sharded} stay sharded, {mixed} as called, "
            f"{len(gather)} gather; {sum(self.calls.values())} calls: {dict(self.calls)}\n"
            f"gather: {' '.join(name.rstrip('.') for name in gather)}"
        )


def samples(op: Any, how: Pass, ranks: int) -> list[Any]:
    """Some of torch's sample arguments for `op` that contain a batch."""
    grads = op.supports_autograd and (how.dtype.is_floating_point or how.dtype.is_complex)
    torch.manual_seed(0), random.seed(0), numpy.random.seed(0)
    # not op.sample_inputs(): it looks through the whole stack at each sample
    found = op.sample_inputs_func(op, "cpu", how.dtype, grads and not how.inplace)
    return list(islice((s for s in found if _batched(s.input, ranks, how.at)), how.count))


def _batched(x: Any, ranks: int, at: int) -> bool:
    return type(x) is Tensor and x.layout is torch.strided and x.dim() > at and x.shape[at] >= ranks


def outcome(function: Any, args: Any, kwargs: Any) -> Any:
    """The result, or the exception."""
    torch.manual_seed(1)
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return error


def uneven(total: int, ranks: int) -> tuple[int, ...]:
    """Give the first rank all rows but one for each of the others."""
    return (total - ranks + 1, *[1] * (ranks - 1))


def compare(view: Counting, function: Any, sample: Any, how: Pass, both: bool) -> str | None:
    """Two equal calls; the second uses the cached decision of the first."""
    said = (_compare(view, function, sample, how, both) for _ in range(2))
    return next((line for line in said if line), None)


def _compare(view: Counting, function: Any, sample: Any, how: Pass, both: bool) -> str | None:
    """One call on the whole and on rows; with `both`, arguments of its shape are sharded, too."""
    whole, args, kwargs = tree_map(copy, (sample.input, sample.args, sample.kwargs))
    leaf, mine, named = tree_map(copy, (sample.input, sample.args, sample.kwargs))
    cuts = view.shard_sizes(uneven(whole.shape[how.at], view.group.size))
    if how.turned:
        whole, leaf = (
            x.T.contiguous().T.detach().requires_grad_(x.requires_grad) for x in (whole, leaf)
        )
    base = whole * 1 if whole.requires_grad else whole.clone()
    want = outcome(function, (base, *args), kwargs)

    def cut(x: Any) -> Any:
        alike = type(x) is Tensor and x.shape == whole.shape
        return by_rows(x, cuts, how.at) if both and alike else x

    rows = by_rows(leaf, cuts, how.at)
    view.names.clear()
    got = outcome(function, (rows, *tree_map(cut, mine)), tree_map(cut, named))
    if isinstance(want, Exception) or isinstance(got, Exception):
        same = isinstance(want, Exception) and isinstance(got, Exception)
        return None if same else f"raises {got!r:.120} instead of {want!r:.120}"
    # whole numbers make float32
    rtol = 1e-9 if how.dtype in (torch.float64, torch.complex128) else 1e-4
    said = difference((want, base), (got, rows), rtol) or _layouts(want, got)
    if said or not whole.requires_grad:
        return said
    trees = (whole, args, kwargs), (leaf, mine, named)
    leaves = [
        [x for x in tree_flatten(t)[0] if type(x) is Tensor and x.requires_grad] for t in trees
    ]
    return gradient_difference(view.group, want, got, *leaves, rtol=10 * rtol)


def _layouts(want: Any, got: Any) -> str | None:
    """The first sharded result that has other strides than the result on the whole."""
    for a, b in zip(tree_flatten(want)[0], tree_flatten(got)[0], strict=True):
        if type(b) is ShardedTensor and a.numel():
            strides = [
                [s for s, n in zip(x.stride(), a.shape, strict=True) if n > 1] for x in (a, b)
            ]
            if strides[0] != strides[1]:
                return f"strides {b.stride()} instead of {a.stride()} of {tuple(a.shape)}"
    return None


def survey(group: Any, passes: list[Pass]) -> list[Found]:
    """All operators, once for each way to call them."""
    from torch.testing._internal.common_methods_invocations import op_db

    warnings.simplefilter("ignore")
    found = []
    for how in passes:
        view, now = Counting(group), Found()
        found.append(now)
        for op in op_db[:: how.every]:
            function = op.inplace_variant if how.inplace else op.op
            name = f"{op.name}_" if how.inplace else op.name
            exempt = name in EXEMPT or (how.turned and name in CONTIGUOUS)
            if how.dtype not in op.dtypes or function is None or exempt:
                continue
            for index, sample in enumerate(samples(op, how, group.size)):
                said = compare(view, function, sample, how, both=bool(index % 2))
                kind = "differing" if said else "gathering" if view.names else "sharded"
                now.calls[kind] += 1
                now.operators.setdefault(f"{name}.{op.variant_test_name}", set()).add(kind)
                if said:
                    now.differ.append(f"{name}.{op.variant_test_name} as {how}: {said}")
    return found


def agreed(nproc: int, passes: list[Pass]) -> list[Found]:
    importlib.import_module(DATABASE)  # once, not by each rank
    found = run_ranks(survey, nproc, passes, timeout=240)
    differ = [line for rank in found for one in rank for line in one.differ]
    assert not differ, "\n".join(dict.fromkeys(differ))
    return found[0]


def test_operators_are_equal_on_rows_and_on_the_whole():
    found = agreed(2, [Pass(count=2), Pass(at=1), Pass(inplace=True)])
    for how, one in zip(("batch first", "batch second", "in place"), found, strict=True):
        print(f"\n{how}, 2 ranks, float64: {one}", end="")
    assert found[0].calls["sharded"] >= FLOOR * sum(found[0].calls.values())


def test_operators_of_other_dtypes():
    dtypes = (torch.int64, torch.bool, torch.complex128, torch.float32)
    found = agreed(2, [Pass(dtype=dtype, every=3) for dtype in dtypes])
    for dtype, one in zip(dtypes, found, strict=True):
        print(f"\nevery third, {dtype}: {one}", end="")


def test_operators_on_three_ranks():
    found = agreed(3, [Pass(every=5), Pass(every=3, turned=True)])
    for how, one in zip(("every fifth", "every third, turned"), found, strict=True):
        print(f"\n{how}, 3 ranks: {one}", end="")


def _cumulative(func: Any, args: Any, kwargs: Any) -> Any:
    return LocalCall(args, kwargs, args[0].placement)


def _swapped(func: Any, args: Any, kwargs: Any) -> Any:
    """A wrong rule, which does not move the shard dimension."""
    return LocalCall(args, kwargs, args[0].placement, aliases=True)


def _summed(func: Any, args: Any, kwargs: Any) -> Any:
    return LocalCall(args, kwargs, None) if type(args[0]) is ShardedTensor else NotImplemented


def _dropped(func: Any, args: Any, kwargs: Any) -> Any:
    me = args[0]
    return ShardedTensor(func(me.local, *args[1:], **kwargs), me.sizes, me.shard_dim)


BREAKS = {
    "cumsum": (torch.cumsum, _cumulative),
    "transpose": (torch.transpose, _swapped),
    "sum": (torch.sum, _summed),
    "nn.functional.dropout": (torch.nn.functional.dropout, _dropped),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_wrong_rule_is_detected(name, monkeypatch):
    """A rule that uses local rows where the whole is needed gives a difference."""
    importlib.import_module(DATABASE)
    function, wrong = BREAKS[name]
    monkeypatch.setitem(table._RULES, function, table.FunctionRule(wrong, cached=False))
    found = run_ranks(_only, 2, name)
    assert any("instead of" in line for line in found[0])


def _only(group: Any, name: str) -> list[str]:
    from torch.testing._internal.common_methods_invocations import op_db

    view, how = Counting(group), Pass(count=8)
    op = next(op for op in op_db if op.name == name)
    return [said for s in samples(op, how, 2) if (said := compare(view, op.op, s, how, both=False))]


@pytest.mark.parametrize("name", sorted({"resize_", "resize_as_", "as_strided_"}))
def test_functions_that_replace_memory_raise_with_their_name(name):
    (said,) = set(run_ranks(_refused, 2, name))
    assert said.startswith(f"BadInput: {name} gives a batch of shape (4, 3) another shape in place")


def _refused(group: Any, name: str) -> str:
    view = Counting(group)
    rows = by_rows(torch.zeros(4, 3), view.even_sizes(4))
    arguments = {"resize_": (2, 3), "resize_as_": (torch.zeros(2),), "as_strided_": ((2,), (1,))}
    error = outcome(getattr(Tensor, name), (rows, *arguments[name]), {})
    return f"{type(error).__name__}: {error}"


def _turned_without_gradients(group: Any) -> str:
    batch = by_rows(torch.zeros(4, 3), Counting(group).even_sizes(4)).requires_grad_() * 2
    with torch.no_grad():
        error = outcome(Tensor.t_, (batch,), {})
    return f"{type(error).__name__}: {error}"


def test_a_graph_of_the_former_shape_is_refused():
    (said,) = set(run_ranks(_turned_without_gradients, 2))
    assert said.startswith("BadInput: t_ gives a batch of shape (4, 3) another shape in place")
