"""Functions of layers on sharded tensors equal one process, and gather nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support.ranks import run_ranks
from tests.view.compare import Counting, by_rows, difference, gradient_difference

# x and y are (rows, 4, 6), im (rows, 4, 6, 6), v (rows, 4, 4, 6, 6), i whole numbers (rows, 4)
CASES = """
F.conv1d(x, w[:4,:4,None])
F.conv1d(x, w[:4,:4,None].expand(4,4,3), padding='same')
F.conv1d(input=x, weight=w[:4,:4,None])
F.conv1d(x, w[:4,:2,None], groups=2)
F.conv2d(im, k)
F.conv2d(im, k, padding='same')
F.conv2d(im, k, w[0,:4], 2, 1, 1, 1)
F.conv3d(v, k[...,None])
F.conv_transpose2d(im, k, None, 2)
F.conv_transpose1d(x, w[:4,:4,None])
F.conv_transpose3d(v, k[...,None])
F.conv1d(im[:,0], w[:6,:6,None])
F.max_pool1d(x, 2)
F.max_pool2d(im, 2)
F.max_pool3d(v, 2)
F.max_pool2d(im, 2, return_indices=True)
F.max_pool1d(x, 2, return_indices=True)
F.avg_pool1d(x, 2)
F.avg_pool2d(im, 2)
F.avg_pool3d(v, 2)
F.lp_pool1d(x, 2.0, 2)
F.lp_pool2d(im, 2.0, 2)
F.lp_pool3d(v, 2.0, 2)
F.adaptive_avg_pool1d(x, 2)
F.adaptive_avg_pool2d(im, 1)
F.adaptive_avg_pool3d(v, (1, None, 2))
F.adaptive_max_pool1d(x, 2)
F.adaptive_max_pool2d(im, 2)
F.adaptive_max_pool2d(im, 2, return_indices=True)
F.adaptive_max_pool3d(v, 2)
F.max_unpool2d(*F.max_pool2d(im, 2, return_indices=True), 2)
F.max_unpool1d(*F.max_pool1d(x, 2, return_indices=True), 2)
F.max_unpool3d(*F.max_pool3d(v, 2, return_indices=True), 2)
F.max_unpool2d(*F.max_pool2d(im, 2, return_indices=True), 2, output_size=im.shape)
F.interpolate(im, scale_factor=2)
F.interpolate(im, size=(3, 5), mode='bilinear', align_corners=True)
F.interpolate(x, 3, mode='linear')
F.interpolate(v, 3, mode='trilinear')
F.interpolate(im, 3, mode='bicubic', antialias=True)
F.interpolate(im, scale_factor=0.5, mode='area')
F.upsample(im, 3)
F.grid_sample(im, im[:, :3, :, :2].tanh())
F.grid_sample(v, v[:, :3, :, :, :3].tanh())
F.unfold(im, 2)
F.unfold(im, kernel_size=2, stride=2)
F.fold(F.unfold(im, 2), (6, 6), 2)
F.pixel_shuffle(im, 2)
F.pixel_unshuffle(im, 2)
F.pixel_unshuffle(v, 2)
F.channel_shuffle(im, 2)
F.embedding(i, w)
F.embedding(i.t(), w)
F.embedding_bag(i, w)
F.embedding_bag(i, w, mode='sum', per_sample_weights=x[..., 0])
F.embedding_bag(i, w, mode='max')
F.group_norm(x, 2)
F.group_norm(im, 4)
F.group_norm(im, 2, w[0,:4], w[1,:4])
F.layer_norm(x, (6,))
F.layer_norm(im, (6, 6), w, w)
F.rms_norm(x, (6,))
F.local_response_norm(x, 2)
F.local_response_norm(im, 3)
F.local_response_norm(v, 3)
F.instance_norm(im)
F.instance_norm(x, None, None, w[0,:4], w[1,:4])
F.prelu(x, w[0,:4])
F.prelu(im, w[0,:1])
F.glu(x)
F.glu(im, 2)
F.batch_norm(im, torch.zeros(4), torch.ones(4))
F.batch_norm(im, None, None, training=True)
F.batch_norm(im, torch.zeros(4), torch.ones(4), w[0,:4], w[1,:4], True)
sdpa(x, y, x)
sdpa(im, im, im, attn_mask=w > 0)
sdpa(im, im, im, is_causal=True)
sdpa(im, im, im, scale=0.3)
sdpa(im, im[:, :2], im[:, :2], enable_gqa=True)
sdpa(im.transpose(0,1), im.transpose(0,1), im.transpose(0,1))
sdpa(im, im, im, (im[:, :1, :1] > 0))
sdpa(w.expand(x.shape[0], 6, 6), x, x)
sdpa(im, im, im, torch.ones(x.shape[0], 1, 1, 6) > 0)
F.bilinear(x, y, k3)
F.bilinear(x, y, k3, w[0,:2])
F.linear(input=x, weight=w)
torch.cdist(x, y)
torch.cdist(x, w)
torch.cdist(x[:, 0], w)
torch.cdist(x[:, 0], w.repeat(5, 1))
lstm_cell(x[:, 0], (y[:, 0], y[:, 1]))
lstm_cell(x[:, 0], None)
gru_cell(x[:, 0], y[:, 0])
gru_cell(x[:, 0], None)
rnn_cell(x[:, 0], None)
lstm_cell(torch.ones(x.shape[0], 6), (y[:, 0], y[:, 1]))
lstm(x)
lstm(x.transpose(0, 1), False)
lstm(x, True, (torch.zeros(4, x.shape[0], 3), torch.zeros(4, x.shape[0], 6)))
lstm(x, True, (y[:, :4, :3].transpose(0, 1).contiguous(), y.transpose(0, 1).contiguous()))
gru(x)
rnn(x)
F.alpha_dropout(x, 0.5)
F.dropout(x, 0.0)
F.dropout(x, 0.5, False)
F.dropout2d(x, 0.3, False)
"""


def _names() -> dict[str, Any]:
    """Layers and weights for the cases."""
    torch.manual_seed(3)
    both = {
        first: nn.LSTM(6, 6, 2, bidirectional=True, batch_first=first, proj_size=3)
        for first in (True, False)
    }
    return {
        "F": F,
        "torch": torch,
        "k": torch.randn(4, 4, 3, 3),
        "k3": torch.randn(2, 6, 6),
        "sdpa": F.scaled_dot_product_attention,
        "lstm_cell": nn.LSTMCell(6, 6),
        "gru_cell": nn.GRUCell(6, 6),
        "rnn_cell": nn.RNNCell(6, 6),
        "lstm": lambda x, first=True, state=None: both[first](x, state),
        "gru": nn.GRU(6, 6, batch_first=True),
        "rnn": nn.RNN(6, 6, 2, batch_first=True),
    }


def _case(group: Any, case: str, rows: int, names: dict[str, Any]) -> list[str]:
    view, outs, leaves = Counting(group), [], []
    sizes = view.even_sizes(rows)
    for sharded in (False, True):
        torch.manual_seed(0)
        shapes = ((4, 6), (4, 6), (4, 6, 6), (4, 4, 6, 6))
        mine = [torch.randn(rows, *shape).requires_grad_() for shape in shapes]
        i, w = torch.randint(0, 6, (rows, 4)), torch.randn(6, 6, requires_grad=True)
        batch = [by_rows(x, sizes) if sharded else x for x in (*mine, i)]
        given = names | dict(zip(("x", "y", "im", "v", "i"), batch, strict=True)) | {"w": w}
        outs.append(eval(case, given))
        leaves.append([*mine, w])
    found = difference(*outs) or gradient_difference(group, *outs, *leaves)
    said = [f"{case} of {rows}: {found}"] if found else []
    return said + [f"{case} of {rows} gathered: {name}" for name in view.names]


def _layers(group: Any) -> list[str]:
    torch.set_default_dtype(torch.float64)
    names = _names()
    cases = CASES.strip().splitlines()
    sizes = (7, group.size + 1, group.size)  # uneven ranks, and ranks of one row
    return [said for rows in sizes for case in cases for said in _case(group, case, rows, names)]


@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.filterwarnings("ignore")
def test_layers_on_sharded_tensors(nproc):
    assert run_ranks(_layers, nproc) == [[]] * nproc
