"""forward halves, iterates and stops by what it computed: `while`, `if h.mean() > 0`, `bool`, `max`."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Iterating(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.w, self.b = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.rounds = []

    def forward(self, x):
        h = self.a(x)
        if h.mean() > 0:
            h = h - 0.5
        if not torch.any(h > 2.0):
            h = h * 1.5
        z, count = torch.zeros_like(h), 0
        while count < 20:
            new = torch.tanh(0.5 * self.w(z) + h)
            done, z, count = (new - z).norm() < 0.5, new, count + 1
            if done:
                break
        self.rounds.append(count)
        best = max(range(len(z)), key=lambda k: float(z[k, 0]))
        for k, row in enumerate(z[:3]):
            if row.sum() > 0:
                best = k
        return self.b(z + z[best])


x, y = torch.randn(70, 6), torch.randint(3, (70,))
net = Iterating()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for a, b in DataLoader(TensorDataset(x, y), batch_size=15):
    optimizer.zero_grad()
    loss = F.cross_entropy(net(a), b)
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.12f}", net.rounds[-1])
print(f"{sum(p.abs().sum().item() for p in net.parameters()):.12f}")
torch.save(net.state_dict(), "net.pt")
