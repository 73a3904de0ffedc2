"""forward asks numpy, Python lists and `.item()` for a statistic, and multiplies rows by what comes back."""
import statistics

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
rng = np.random.default_rng(0)


class Asking(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        h = self.a(x)
        values = h.detach().cpu().numpy()
        h = h - torch.from_numpy(np.median(values, axis=0))
        h = h / statistics.pstdev(h.detach()[:, 0].tolist())
        rank = np.argsort(np.argsort(values[:, 1]))
        h = h + torch.as_tensor(rank / len(rank))[:, None]
        h = h * torch.tensor(rng.normal(1, 0.1, size=(len(h), 1)))
        if h.max().item() > 3:
            h = h.clamp(max=3)
        return self.b(F.relu(h))


x, y = torch.randn(100, 6), torch.randint(3, (100,))
net = Asking()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for a, b in DataLoader(TensorDataset(x, y), batch_size=15):
    optimizer.zero_grad()
    loss = F.cross_entropy(net(a), b)
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.12f}")
print(f"{sum(p.abs().sum().item() for p in net.parameters()):.12f} {rng.normal():.12f}")
torch.save(net.state_dict(), "net.pt")
