"""Data sets whose samples are gradients: normals of a surface, and steps down an energy.

The second has a network of its own, which it trains meanwhile.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
surface = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


class Normals(Dataset):
    def __init__(self, by_backward):
        self.points, self.by_backward = torch.randn(42, 3), by_backward

    def __len__(self):
        return 42

    def __getitem__(self, at):
        x = self.points[at].clone().requires_grad_()
        if self.by_backward:
            surface(x).sum().backward(inputs=[x])
            return torch.cat([x.detach(), x.grad]), at % 2
        return torch.cat([x.detach(), *torch.autograd.grad(surface(x).sum(), x)]), at % 2


class Descent(IterableDataset):
    def __iter__(self):
        energy, x = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)), torch.zeros(6)
        optimizer = torch.optim.SGD(energy.parameters(), 0.1)
        for number in range(60):
            (g,) = torch.autograd.grad(energy(x.requires_grad_()).sum(), x)
            x = x.detach() - 0.1 * g + 0.1 * torch.randn(6)
            optimizer.zero_grad()
            energy(x).square().mean().backward()
            optimizer.step()
            yield x.detach(), number % 2


def collated(items):
    """With one more gradient, of all samples at once."""
    x = torch.stack([each for each, _ in items]).requires_grad_()
    (g,) = torch.autograd.grad(x.sin().prod(1).sum(), x)
    return x.detach() - g, torch.tensor([y for _, y in items])


net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for data in (Normals(False), Descent(), Normals(True), Descent()):
    for given in ({}, {"collate_fn": collated}, {"num_workers": 1}):
        for x, y in DataLoader(data, 8, **given):
            loss = F.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(type(data).__name__, sorted(given), repr(loss.item()), repr(x.sum().item()))
