"""What steers forward lies in a closure, in a mutable default and in a partial's keyword."""
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


def counter():
    n = [0]

    def read():
        return n[0]

    def bump():
        n[0] += 1

    return read, bump


def centre(h, every, seen=[]):
    seen.append(len(h))
    return h - h.mean(0) if len(seen) % every == 0 else h


read, bump = counter()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)
        self.act = partial(centre, every=4)

    def forward(self, x):
        h = self.a(x)
        if read() == 2:
            h = h / h.std(0)
        return self.b(F.relu(self.act(h)))


x, y = torch.randn(100, 6), torch.randint(3, (100,))
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for a, b in DataLoader(TensorDataset(x, y), batch_size=16):
    optimizer.zero_grad()
    loss = F.cross_entropy(net(a), b)
    loss.backward()
    optimizer.step()
    bump()
    print(f"{loss.item():.12f}", centre.__defaults__[0])
print(f"{sum(p.abs().sum().item() for p in net.parameters()):.12f}")
torch.save(net.state_dict(), "net.pt")
