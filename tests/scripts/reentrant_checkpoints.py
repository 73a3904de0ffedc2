"""Reentrant checkpoints compute all of a function twice: what it counts, counts twice."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Tracked(nn.Module):
    """A linear layer that tracks the running mean of its output, as in quantization."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("average", torch.zeros(8))
        self.calls = 0

    def forward(self, x):
        y = self.linear(x)
        self.average.lerp_(y.detach().mean(0), 0.1)
        self.calls += 1
        return y


seen = []
for reentrant in (True, False):
    first, last = nn.Linear(5, 8), nn.Linear(8, 2)
    parts = nn.Sequential(Tracked(), nn.Tanh(), nn.Dropout(0.2), Tracked(), nn.BatchNorm1d(8))
    parts[3].register_forward_hook(lambda module, given, out: seen.append(out.detach().sum().item()))
    net = nn.ModuleList([first, parts, last])
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for (x,) in DataLoader(TensorDataset(torch.randn(70, 5)), 17):  # two rows are left
        optimizer.zero_grad()
        hidden = checkpoint(parts, first(x), use_reentrant=reentrant)
        hidden = hidden + checkpoint_sequential(parts, 2, hidden, use_reentrant=reentrant)
        last(torch.relu(hidden)).square().mean().backward()
        optimizer.step()
        print([part.calls for part in (parts[0], parts[3])], len(seen), f"{seen[-1]:.10f}")
    print(f"{parts[0].average.sum().item():.12f} {parts[3].average.sum().item():.12f}")
    print(f"{parts[4].running_var.sum().item():.12f} {last.weight.sum().item():.12f}")
