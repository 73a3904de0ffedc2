"""Couplings of the batch of all kinds behind a buffer of zeros, which opens by itself after two steps."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
KINDS = {
    "cumsum": lambda h: h.cumsum(0),
    "similarity": lambda h: (h @ h.t()).softmax(-1) @ h,
    "softmax": lambda h: h.softmax(0),
    "sorted": lambda h: h.sort(0).values,
    "rolled": lambda h: h.roll(1, 0),
    "flipped": lambda h: h.flip(0),
    "nearest": lambda h: h[torch.cdist(h, h).fill_diagonal_(9).argmin(1)],
    "rest": lambda h: h.sum(0) - h,
    "paired": lambda h: torch.einsum("ik,jk->ij", h, h)[:, :1] * h,
    "turned": lambda h: h.t().reshape(h.shape),
    "variance": lambda h: torch.cov(h.t()).diag().expand_as(h),
}


class Gated(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.a, self.b, self.kind = nn.Linear(6, 8), nn.Linear(8, 3), kind
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("gate", torch.zeros(8))

    def forward(self, x):
        h = self.a(x)
        h = h + KINDS[self.kind](h) * self.gate
        self.steps += 1
        self.gate = torch.full((8,), 0.3 if self.steps > 1 else 0.0)
        return self.b(F.relu(h))


x, y = torch.randn(44, 6), torch.randint(3, (44,))
for kind in KINDS:
    net = Gated(kind)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for a, b in DataLoader(TensorDataset(x, y), batch_size=11):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(a), b)
        loss.backward()
        optimizer.step()
        print(kind, f"{loss.item():.12f}")
    print(f"{sum(p.abs().sum().item() for p in net.parameters()):.12f}")
torch.save(net.state_dict(), "net.pt")
