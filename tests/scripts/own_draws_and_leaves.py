"""Forwards that draw from generators of their own, and that make leaves of their own."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Seeded(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 5)

    def forward(self, x):
        own = torch.Generator().manual_seed(7)
        return self.inner(x + torch.randn(x.shape, generator=own))


class Forked(Seeded):
    def forward(self, x):
        with torch.random.fork_rng():
            torch.manual_seed(5)
            noise = torch.randn_like(x)
        return self.inner(x + noise)


class Inner(Seeded):
    """Steps of an inner loop begin with zeros."""

    def forward(self, x):
        y = torch.zeros(len(x), 5, requires_grad=True)
        for _ in range(2):
            energy = (self.inner(x) - y).pow(2).sum()
            y = y - 0.1 * torch.autograd.grad(energy, y, create_graph=True)[0]
        return y


class Masked(Seeded):
    """As in older repositories: `new` of a shape."""

    def forward(self, x):
        mask = torch.bernoulli(x.data.new(x.data.size()).fill_(0.5))
        return self.inner(x) * mask


for kind in Seeded, Forked, Inner, Masked:
    model = kind()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for (x,) in DataLoader(TensorDataset(torch.randn(25, 5)), batch_size=7, shuffle=True):
        loss = model(x).sin().mean() + x.new(x.size()).fill_(0.5).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(kind.__name__, loss.item())
    torch.save(model.state_dict(), f"{kind.__name__}.pt")
