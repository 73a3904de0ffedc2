"""Methods of tensors that the script has replaced, as counters of operations do: called once."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
mean, matmul, backward = torch.Tensor.mean, torch.Tensor.matmul, torch.Tensor.backward
counts = {"mean": 0, "matmul": 0, "backward": 0}


def shifted(self, *args, **kwargs):
    counts["mean"] += 1
    return mean(self, *args, **kwargs) + 1


def counted(self, other):
    counts["matmul"] += 1
    return matmul(self, other)


def halved(self, *args, **kwargs):
    counts["backward"] += 1
    return backward(self * 0.5, *args, **kwargs)


torch.Tensor.mean, torch.Tensor.matmul, torch.Tensor.backward = shifted, counted, halved
sort = torch.Tensor.sort
torch.Tensor.sort = lambda self, *args, **kwargs: sort(self * 2, *args, **kwargs)
weight = nn.Parameter(torch.randn(6, 3))
optimizer = torch.optim.SGD([weight], 0.1)
for x, y in DataLoader(TensorDataset(torch.randn(96, 6), torch.arange(96) % 3), 12):
    optimizer.zero_grad()
    out = x.matmul(weight)
    loss = F.cross_entropy(out, y) + out.mean(1).square().mean()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.12f} {weight.grad.abs().sum():.12f} {x.sort(0).values[0, 0]:.12f}", counts)
