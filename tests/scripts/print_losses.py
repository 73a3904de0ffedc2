"""Batches, outputs and losses printed as tensors, with the node of the graph that each has; tensors made of losses."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")  # that tensors are made of losses
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
net = torch.nn.Linear(4, 10)
smooth = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
weighted = torch.nn.NLLLoss(weight=torch.rand(10))
for x, y, t in DataLoader(TensorDataset(torch.randn(8, 4), torch.arange(8), torch.rand(8, 10)), batch_size=8):
    out = net(x)
    losses = [F.cross_entropy(out, y), smooth(out, y), weighted(out.log_softmax(1), y), F.cross_entropy(out, t)]
    losses += [F.mse_loss(out, t), F.l1_loss(out, t), F.binary_cross_entropy_with_logits(out, t, reduction="sum")]
    losses += [F.kl_div(out.log_softmax(1), t, reduction="batchmean"), F.cross_entropy(out, y, ignore_index=3)]
    losses += [out.sum(), out.mean(), out.mean(0), out.sum((0, 1)), (out - t).pow(2).mean(), out.norm(), out.max()]
    first, second = losses[:2]
    losses += [first + second, first - second, 1 - first, first / 4, 0.5 * first, -first, first.exp(), first.clone()]
    for loss in losses:
        print(loss, f"{loss}", type(loss.grad_fn).__name__)
    first += second
    print(first, type(first.grad_fn).__name__, first.detach())
    print(out, out[0], type(out.relu().grad_fn).__name__, str(out.detach()))
    x.requires_grad_()
    print(x, x.is_leaf, x[:, 0], y, f"{y[0]} {out.argmax(1)} {first:.6f}", y.dtype, x.device, [out.shape, first.shape])
    torch.stack([loss.sum() for loss in losses]).sum().backward()
    print(net, net.weight.grad)
kept = []
for x, y in DataLoader(TensorDataset(torch.randn(17, 4), torch.arange(17) % 10), batch_size=6):
    out = net(x)
    loss = F.cross_entropy(out, y)
    loss.backward()
    kept.append(loss)
    print(torch.tensor(loss).item(), torch.tensor(out).sum().item(), x.new_tensor(loss).item())
print(torch.tensor(kept).mean().item(), torch.tensor([loss, 2.0]).sum().item())
print(torch.as_tensor(kept).sum().item(), torch.tensor(loss).requires_grad)
