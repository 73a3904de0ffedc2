"""A data set whose samples are gradients of a network: normals of a surface, and attacks on it."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

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
            normal = x.grad
        else:
            (normal,) = torch.autograd.grad(surface(x).sum(), x)
        return torch.cat([x.detach(), normal]), at % 2


def flipped(items):
    """Collated with one more gradient, of all samples at once."""
    x = torch.stack([each for each, _ in items]).requires_grad_()
    (g,) = torch.autograd.grad(x.sin().prod(1).sum(), x)
    return x.detach() - g, torch.tensor([y for _, y in items])


net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for by_backward in (False, True):
    for given in ({}, {"collate_fn": flipped}, {"num_workers": 1}):
        for x, y in DataLoader(Normals(by_backward), 8, shuffle=True, **given):
            loss = F.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(by_backward, sorted(given), repr(loss.item()), repr(x.sum().item()))
