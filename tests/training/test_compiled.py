"""What torch.compile makes of a split call: the scripts `compiled_*` compare its numbers."""

from __future__ import annotations

import shutil
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autoddp.comm.context import Code
from tests.support.training import on_ranks, rows

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("g++") is None, reason="inductor builds kernels for CPUs by g++"
    ),
]


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x * 0 + self.weight, 0.5)


def inductors_masks(run):
    model = torch.compile(Dropped(), fullgraph=True)
    batch = torch.stack([x for x, _ in rows(40, 16)])
    with run.view.context.within(Code.PLAIN):
        model(batch)  # compiled for one process, which draws as often
    state = torch.get_rng_state()
    masks = [model(batch) for _ in range(2)]
    said = [d.what for d in run.report.of("draws")]
    split = len(run.report.of("split"))
    return masks[0] != 0, masks[1] != 0, said, split, bool((torch.get_rng_state() == state).all())


def test_kernels_that_draw_inside_draw_for_each_rank_and_say_so():
    for first, second, said, split, stands in on_ranks(inductors_masks, 2):
        assert split == 1
        assert not stands, "the generator goes on as in one process"
        assert any("inductor's kernels draw inside" in line for line in said), said
        assert 0.4 < first.double().mean() < 0.6
        for a, b in ((first[:20], first[20:]), (first, second)):
            assert 0.35 < (a == b).double().mean() < 0.65


class Checkpointed(Dropped):
    """What drops runs again in the backward, where the graph hands on the generator's state."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


def checkpoints_masks(run, backend):
    model = Checkpointed()
    out = torch.compile(model, backend=backend, fullgraph=True)(
        torch.stack([x for x, _ in rows(40, 16)])
    )
    out.sum().backward()
    return (
        out.detach() != 0,
        model.weight.grad,
        float(out.sum()),
        [d.what for d in run.report.of("draws")],
    )


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_checkpoint_that_drops_has_the_same_mask_in_its_backward_and_says_so(backend):
    for mask, gradient, total, said in on_ranks(partial(checkpoints_masks, backend=backend), 2):
        assert float(gradient) == pytest.approx(total), "the weight is 1"
        assert any("run_and_save_rng_state draws inside compiled code" in line for line in said), (
            said
        )
        assert 0.35 < (mask[:20] == mask[20:]).double().mean() < 0.65
