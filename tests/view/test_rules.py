"""Compare every rule with the plain function on the whole: values, gradients, uneven shards."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.ranks import run_ranks
from tests.view.compare import Counting, by_rows, difference, gradient_difference

# x and y are batches, w a parameter of 6 x 6, i whole numbers 0..3 in the shape of x[..., 0]
POINTWISE = """
x + y; x * 2; 2 - x; x / (y.abs() + 1); x @ w; x.abs() ** 0.5; x > y; (x > 0) & (y > 0); ~(x > 0)
x.clamp(-1, 1)
torch.where(x > 0, x, y); torch.where(x > 0, x, 0.0); torch.maximum(x, y); x.masked_fill(x > 0, 0.5)
torch.lerp(x, y, 0.3)
x + w[0]; x * w[:4]; x + w.sum(); w[0] - x; F.gelu(x); F.relu(x); F.silu(x); F.softplus(x); F.elu(x)
F.hardtanh(x)
F.leaky_relu(x, 0.1); F.softsign(x); F.tanhshrink(x); F.logsigmoid(x); F.threshold(x, 0.1, 5.0)
x.sigmoid().tanh()
torch.addcmul(x, x, y, value=0.5); torch.addcdiv(x, y, x.abs() + 1); x.nan_to_num(); x.isnan()
torch.isclose(x, y); torch.complex(x, y)
torch.ones_like(x); torch.zeros_like(x) + x; torch.full_like(x, 3.0) * y; x.type_as(y); x.bool()
x[..., 0] + y[..., 0]; x[..., :1] * y; x + y[..., :1].expand_as(y); x.clone().add_(y)
x.clone().mul_(w[0]); (x * 1).relu_()
x.float().double(); x.half().double(); x.long(); x.to(torch.float32); x.clone().copy_(y)
x.clone().fill_(2.0); x.clone().zero_()
F.one_hot(i, 4); F.normalize(x, dim=-1); F.cosine_similarity(x, y, dim=-1); \
F.pairwise_distance(x, y)
F.relu(x * 1, inplace=True); torch.zeros_like(x, memory_format=torch.preserve_format)
torch.ones_like(input=x); torch.add(input=x, other=y); \
torch.where(condition=x > 0, input=x, other=y)
x[:, 0, 0].detach() == x[:, 0, 0].detach().numpy(); i != i.numpy()
"""
REDUCTIONS = """
x.sum(); x.mean(); x.sum(-1); x.mean(-1, keepdim=True); x.sum(0); x.mean(0); \
x.sum((0, 1)); x.mean((0, 2))
x.sum(1); x.mean((1, 2))
x.argmax(-1); x.argmin(-1); x.max(-1); x.min(-1); x.max(); x.min(); x.amax(-1); x.amin((1, 2))
x.logsumexp(-1); x.prod(-1); x.var(-1); x.std(-1)
x.var(); x.median(); x.median(-1); x.mode(-1); x.norm(dim=-1); x.norm(); \
x.kthvalue(2); x.kthvalue(2, -1)
x.nansum(-1); x.nanmean(-1)
(x > 0).any(); (x > 0).all(); (x > 0).any(-1); (x > 0).sum(); (x > 0).sum(-1); i.sum(); i.max()
i.float().mean(); x.std(-1, unbiased=False)
F.softmax(x, -1); F.log_softmax(x, -1); x.softmax(0); x.softmax(1); x.cumsum(-1); x.cumsum(0)
x.cumprod(-1); x.sort(-1); x.sort(); x.argsort(-1)
x.topk(2); x.topk(2, -1); x.sort(0); x.gather(-1, i[..., None]); x.take_along_dim(i[..., None], -1)
x.cumsum(1); F.glu(x); F.glu(x, 1)
torch.linalg.norm(x); torch.linalg.vector_norm(x, dim=-1); \
x.var(-1, correction=0); x.var(0); x.std(1)
x.count_nonzero(); torch.softmax(input=x, dim=1); torch.max(input=x); torch.sum(input=x, dim=-1)
x.sum(axis=1, keepdims=True); x.sort(axis=0); x.argsort(axis=0); x.topk(1, axis=1)
x.mean(axis=0, keepdims=True)
"""
VIEWS = """
x.view(-1, 6); x.view(-1); x.reshape(x.shape[0] * 4, 6); x.flatten(); x.flatten(1); x.flatten(0, 1)
x.flatten(0, 1).view(-1, 4, 6); x.unsqueeze(0)
x.unsqueeze(-1); x.unsqueeze(0).squeeze(0); x.unsqueeze(1).squeeze(); x.unsqueeze(1).squeeze(1)
x.transpose(0, 1); x.transpose(1, 2); x.mT
x[..., 0].t(); x[..., 0].T; x.permute(2, 0, 1); x.movedim(0, 2); \
x[:, 0]; x[..., 1:]; x[:, None]; x[None]
x[0]; x[-1]; x[:2]; x[::2]; x[x > 0]; x[:99]; x[0:99, 1:]; x[-99:]; x[:-1]
x[:, [0, 2]]; x[i]; x.select(1, 0); x.narrow(2, 1, 3); x.chunk(2, 1); x.chunk(2); x.split(3, -1)
x.split(2); x.unbind(1); x.unbind()
x.tensor_split(2, 2); x.index_select(1, torch.tensor([1, 0])); x.flip(1); x.flip(0); x.flip(-1, 1)
torch.cat([x, y]); torch.cat([x, y], 1)
torch.stack([x, y]); torch.stack([x, y], -1); torch.stack([x, y], 1); torch.hstack([x, y])
x.repeat(1, 2, 1); x.repeat(2, 1, 1); x.expand(-1, -1, -1)
x.expand(2, *x.shape); x.unsqueeze(1).expand(-1, 3, -1, -1); x.tril(); x.triu(1); F.pad(x, (1, 2))
F.pad(x, (1, 1), mode="reflect"); F.pad(x, (0, 0, 0, 0, 1, 1))
x.roll(1, 0); x.diff(dim=0); x.unfold(1, 2, 1); x.clone().unsqueeze_(1); x.clone().transpose_(0, 1)
x.clone().unsqueeze_(0).squeeze_(0) + y; list(x)[0]
x.reshape(x.shape[0], 2, 2, 6).permute(0, 2, 1, 3).reshape(x.shape[0], -1); \
x.swapaxes(0, 2); x.view_as(y)
x.reshape(4, -1); x.contiguous().view(4, -1)
w[0].expand_as(x); x[:, :1].expand_as(y); x.view_as(w); y.reshape_as(x); x.unflatten(-1, (2, 3))
x.flatten(0, 1).unflatten(0, x.shape[:2]); x.unflatten(-1, (6,))
torch.stack([x, y], axis=1); torch.cat([x, y], axis=2); x.unbind(axis=2); x.chunk(2, axis=1)
torch.flatten(input=x, start_dim=1); torch.stack(tensors=[x, y], dim=1)
x.roll(1); x.roll(1, 1); x.roll((1, 2), (1, 2)); torch.cat([x, torch.ones(x.shape)], 1)
torch.cat([torch.ones(x.shape), x], -1); torch.cat([x, w[:1, :1].expand(x.shape)])
(op.setitem(z := x * 1, (slice(None), 0), 1.5), z)[1]; \
(op.setitem(z := x * 1, (..., 0), y[..., 1]), z)[1]
(op.setitem(z := x * 1, (slice(None), slice(1, 3)), torch.ones(x.shape[0], 2, 6)), z)[1]
(op.setitem(z := x * 1, (..., slice(3)), w[0, :3]), z)[1]; (op.setitem(z := x * 1, 0, 2.0), z)[1]
(op.setitem(z := x * 1, x > 0, 2.0), z)[1]; (op.setitem(z := x * 1, slice(0, 99), y), z)[1]
(op.setitem(z := x * 1, (..., slice(None, None, 2)), x[..., 1::2]), z)[1]
(op.setitem(z := x * 1, x[..., 0] > 0, w[0, 0]), z)[1]; (op.setitem(z := x * 1, y > 0, 1), z)[1]
(op.setitem(z := x.new_zeros(x.shape), (..., slice(1, None)), x[..., :-1]), z)[1]
(op.setitem(z := x.new_full(x.size(), 2.5), x > y, w.sum()), z)[1]; x.new_ones(x.shape) * y
"""
LAYERS = """
F.linear(x, w, w[0]); x.matmul(w); x @ x.mT; torch.bmm(x, y.mT); x @ w[0]; w @ x.mT
F.normalize(x, 1.0); F.normalize(input=x, p=3.0, dim=2); F.normalize(x, dim=0)
F.embedding(i, w, padding_idx=1); F.embedding(i, w, scale_grad_by_freq=True)
F.scaled_dot_product_attention(query=x, key=y, value=x); F.conv2d(x[:, None], w[None, None, :3, :3])
torch.einsum("bij,bkj->bik", x, y); F.batch_norm(x, None, None, training=True)
torch.cdist(x, y); torch.cdist(x.flatten(1), y.flatten(1)); x.flatten(1) @ y.flatten(1).T
torch.cdist(x, w); torch.cdist(x[:, 0], w, 1.0); torch.cdist(x, w[None]); torch.cdist(x[:, 0], x)
torch.cdist(w, x); torch.cdist(x.flatten(0, 1), w); torch.cdist(x.repeat(1, 9, 1).flatten(0, 1), w)
"""
LOSSES = """
F.mse_loss(x, y); F.mse_loss(x, y, reduction="sum"); \
F.mse_loss(x, y, reduction="none"); F.l1_loss(x, y)
F.smooth_l1_loss(x, y); F.huber_loss(x, y)
F.binary_cross_entropy(x.sigmoid(), y.sigmoid()); F.binary_cross_entropy_with_logits(x, y.sigmoid())
F.binary_cross_entropy_with_logits(x, y.sigmoid(), pos_weight=w[0].detach().abs())
F.binary_cross_entropy_with_logits(x, y.sigmoid(), weight=y.detach().abs())
F.kl_div(x.log_softmax(-1), y.softmax(-1))
F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean")
F.soft_margin_loss(x, y.sign()); F.gaussian_nll_loss(x, y, torch.ones_like(x))
F.cross_entropy(x[:, 0], i[:, 0]); F.cross_entropy(x, i[:, 0, None].expand(-1, 6))
F.cross_entropy(x.flatten(0, 1), i.flatten()); \
F.cross_entropy(x[:, 0], i[:, 0], label_smoothing=0.1)
F.cross_entropy(x[:, 0], i[:, 0], weight=w[0].detach().abs())
F.cross_entropy(x[:, 0], i[:, 0], ignore_index=1); \
F.cross_entropy(x[:, 0], i[:, 0], reduction="none")
F.cross_entropy(x[:, 0], i[:, 0], reduction="sum"); F.cross_entropy(x[:, 0], y[:, 0].softmax(-1))
F.cross_entropy(x, y.softmax(1), reduction="none"); F.cross_entropy(x, y.softmax(1))
F.nll_loss(x[:, 0].log_softmax(-1), i[:, 0])
F.cross_entropy(x[:, 0], i[:, 0], weight=w[0].detach().abs(), label_smoothing=0.1)
F.cross_entropy(x[:, 0], i[:, 0] * 0 - 100)
F.triplet_margin_loss(x, y, x * 2); F.multi_margin_loss(x[:, 0], i[:, 0])
F.cosine_embedding_loss(x[:, 0], y[:, 0], i[:, 0].sign() * 2 - 1); F.poisson_nll_loss(x, y.abs())
F.hinge_embedding_loss(x, y.sign()); F.mse_loss(x, y, weight=y.detach().abs())
F.mse_loss(x, y, weight=y.detach().abs(), reduction="sum")
F.huber_loss(x, y, weight=y.detach().abs()); F.mse_loss(x, torch.zeros(x.shape))
F.mse_loss(x, torch.ones(1, *x.shape[1:])); F.binary_cross_entropy(x.sigmoid(), torch.ones(x.shape))
F.cross_entropy(x[:, 0], torch.ones(x.shape[0], dtype=torch.long))
"""
PARTIALS = """
x.mean() + y.mean(); x.sum() - 2 * y.mean(); x.sum() / 3 + 1; \
1 - x.mean(); -x.mean(); x.mean() * y.mean()
x.mean() ** 2; x.mean().sqrt().nan_to_num(); x.mean() * w.sum()
w.sum() * x.mean() + x.sum(); x.mean() / w.sum(); x.sum() + w[0, 0]; w[0, 0] - x.sum(); i.sum() + 1
i.sum() / 2; i.sum() * 2.5; i.sum() // 2; 3 - i.sum(); (x > 0).sum() + i.sum()
x.mean().detach() * y.mean(); x.mean().clone(); \
x.float().mean() + y.mean(); x.mean().double() + i.sum()
x.half().sum() * 2; x.mean() + i.sum(); torch.stack([x.mean(), y.mean()]); sum([x.mean(), y.mean()])
x * x.mean(); x - x.mean(); (x - x.mean(0)) / (x.std(0) + 1); \
x.mean() > 0; float(x.mean()); int(i.sum())
round(x.mean().item(), 6); x.sum().view(1); x.mean().expand(3); \
x.mean()[None]; max(x.mean(), y.mean())
op.imul(x.mean(), 2.0); op.itruediv(x.mean(), 4); \
op.isub(x.mean(), y.mean()); op.iadd(x.mean(), y.mean())
op.iadd(i.sum(), 1); op.imul(x.mean(), w.sum()); op.iadd(x.sum(), i.sum())
op.imul(i.sum(), 3); op.itruediv(x.mean(), y.mean()); op.iadd(x * 1, y); op.imul(x * 1, w[0])
op.ipow(x * 1, 2); op.ifloordiv(i.clone(), 2); op.iand(x > 0, y > 0)
op.itruediv(x.float().mean(), i.sum())
torch.add(x.mean(), y.mean(), alpha=2); x.mean().add(y.mean()); \
x.mean().add_(1.0); x.mean().mul_(2.0)
x.mean().sub_(y.mean()); torch.rsub(x.mean(), y.mean()); x.mean().neg_(); x.mean().div_(i.sum())
x.mean().dtype; i.sum().dtype; (i.sum() / 2).dtype; (x.half().mean() * 2).dtype
"""


def expressions(*tables: str) -> list[str]:
    return [
        part.strip() for t in tables for line in t.strip().splitlines() for part in line.split(";")
    ]


ALL = (POINTWISE, REDUCTIONS, VIEWS, LAYERS, LOSSES, PARTIALS)
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "transposed": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "inside out": lambda x: x.permute(2, 1, 0).contiguous().permute(2, 1, 0),
}


@dataclass
class Case:
    """The names for expressions."""

    x: Tensor
    y: Tensor
    w: Tensor
    i: Tensor

    def of(self, text: str) -> Any:
        names = {
            "torch": torch,
            "op": operator,
            "F": F,
            "x": self.x,
            "y": self.y,
            "w": self.w,
            "i": self.i,
        }
        try:
            return eval(text, names)
        except Exception as error:
            return error


def case(shape: tuple[int, ...], layout: str, grad: bool) -> Case:
    torch.manual_seed(3)
    x, y, w = (LAYOUTS[layout](torch.randn(shape)), torch.randn(shape), torch.randn(6, 6))
    return Case(*(v.requires_grad_(grad) for v in (x, y, w)), torch.randint(0, 4, shape[:-1]))


def check(
    view: Counting, text: str, shape: tuple[int, ...], layout: str, at: int, grad: bool
) -> str | None:
    """Compare an expression on the whole and on rows."""
    one, two = (case(shape, layout, grad) for _ in range(2))
    cuts = view.even_sizes(shape[at])
    by = [by_rows(v, cuts, at) for v in (two.x, two.y)]
    if not view.group.agree(by[0].local.shape[at] == cuts.local):
        return "cut"
    whole = Case(one.x * 1, one.y * 1, one.w, one.i)
    rows = Case(*by, two.w, by_rows(two.i, cuts, at) if at < 2 else two.i)
    want, got = whole.of(text), rows.of(text)
    if isinstance(want, Exception) or isinstance(got, Exception):
        same = type(want) is type(got)
        return None if same else f"raises {got!r:.200} instead of {want!r:.100}"
    rtol = 1e-2 if "half" in text else 1e-5 if "float" in text else 1e-9
    said = difference((want, whole.x), (got, rows.x), rtol)
    if said or not grad:
        return said
    ours, mine = ([v.x, v.y, v.w] for v in (one, two))
    return gradient_difference(view.group, want, got, ours, mine, 10 * rtol)


def work(
    group: Any, tables: tuple[str, ...], places: list[tuple[tuple[int, ...], str, int, bool]]
) -> list[str]:
    torch.set_default_dtype(torch.float64)
    view, wrong = Counting(group), []
    warnings.simplefilter("ignore")
    for place in places:
        for text in expressions(*tables):
            said = check(view, text, *place)
            if not said and place == places[0]:
                said = check(view, text, *place)  # by the decisions that the first one left
            if said:
                wrong.append(f"{text} at {place}: {said}")
    return wrong


def agreed(nproc: int, tables: tuple[str, ...], places: Any) -> None:
    wrong = run_ranks(work, nproc, tables, places, timeout=100)
    lines = dict.fromkeys(f"rank {r}: {line}" for r, lines in enumerate(wrong) for line in lines)
    assert not lines, "\n".join(lines)


def test_batch_first():
    agreed(2, ALL, [((7, 4, 6), "plain", 0, True), ((3, 4, 6), "plain", 0, True)])
    agreed(2, ALL, [((2, 4, 6), "plain", 0, True)])


def test_batch_in_other_dimensions():
    agreed(2, ALL, [((7, 4, 6), "plain", 1, True), ((7, 4, 6), "plain", 2, True)])


@pytest.mark.slow
def test_three_ranks():
    agreed(3, ALL, [((7, 4, 6), "plain", 0, True)])


@pytest.mark.slow
def test_ranks_without_rows():
    agreed(3, ALL, [((2, 4, 6), "plain", 0, True), ((1, 4, 6), "plain", 0, True)])


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["transposed", "inside out"])
def test_memory_layouts(layout):
    agreed(2, ALL, [((5, 4, 6), layout, 0, True), ((5, 4, 6), layout, 0, False)])


def _turned(group: Any) -> Any:
    view = Counting(group)
    rows = by_rows(torch.ones(6, 2), view.even_sizes(6))
    with torch.inference_mode():
        rows.transpose(0, 1)  # where torch counts no views; the decision is kept
    array = rows.numpy()
    rows.transpose(0, 1).add_(8.0)
    return array.sum().item()


def test_a_view_cached_in_inference_mode_is_a_view():
    assert run_ranks(_turned, 2) == [108.0, 108.0]


# n is a tensor without dimensions, which torch takes for a number, f a float
BY_TENSOR = """
x[:, :n]; x[:, n:]; x[..., n]; x.narrow(1, 0, n); x.narrow(1, n, 1); x.select(1, n); x.topk(n, 1)
x.roll(n, 1); x.repeat(1, n, 1); x.split(n, 1); x.unfold(1, n, 1); x.sum(n); x.cumsum(n)
x.transpose(1, n); x.tril(n); F.pad(x, (0, n)); x.expand(n, *x.shape); x.flatten(n); x.chunk(n, 1)
x.view(x.shape[0], n, -1); x.unsqueeze(n); x.movedim(1, n); F.one_hot(i, n + 3); x.diff(n); x * n
x.kthvalue(n, 1); torch.tensor_split(x, n, 1); x.flip(n); x.squeeze(n); x.softmax(n); x.diagonal(n)
(op.setitem(z := x * 1, (slice(None), slice(n)), 1.5), z)[1]; x.repeat_interleave(n, 1)
"""
BY_FLOAT = """
F.interpolate(x, scale_factor=f); F.interpolate(x[None], scale_factor=(f, 1.0)); x.clamp(-f, f)
F.interpolate(x, scale_factor=f, mode="linear"); x.norm(f, 1); F.normalize(x, f, 1); x * f
"""

# the same values, by another name or by position
BY_NAME = """
x.flatten(1); x.flatten(start_dim=1); x.flatten(end_dim=1); x.flatten(1, 2); x.flatten(1, end_dim=2)
x.std(1, True); x.std(1, unbiased=False); x.std(1, keepdim=True); x.std(1, correction=0)
x.sum(1, True); x.sum(1, keepdim=False); x.diff(n=2); x.diff(dim=2); x.diff(2)
x.diagonal(1, 1, 2); x.diagonal(dim1=1, dim2=2); x.diagonal(offset=1, dim1=1, dim2=2)
"""


def _by_value(group: Any) -> list[str]:
    view, wrong = Counting(group), []
    whole = torch.randn(6, 4, 6, generator=torch.Generator().manual_seed(0))
    given = {"torch": torch, "F": F, "op": operator, "i": torch.zeros(6, 4, dtype=torch.int64)}
    for text in expressions(BY_TENSOR, BY_FLOAT, BY_NAME):
        for n, f in ((1, 0.5), (2, 2.0), (1, 0.5)):
            found: list[Any] = []
            for x in (whole, by_rows(whole, view.even_sizes(6))):
                try:
                    found.append(eval(text, {**given, "x": x, "n": torch.tensor(n), "f": f}))
                except (TypeError, RuntimeError) as error:
                    found.append(type(error).__name__)
            said = difference(found[0], found[1], 1e-6)
            wrong += [f"{text} by {n}, {f}: {said}"] if said else []
    return wrong


def test_a_decision_that_another_value_left_is_not_used():
    """What decides the shape of a result need not be part of a schema."""
    assert run_ranks(_by_value, 2) == [[], []]
