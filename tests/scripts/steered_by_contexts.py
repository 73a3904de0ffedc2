"""Context variables, thread-locals and a `with` of one's own keep the state that steers forward."""
import contextlib
import contextvars
import threading

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
calls = contextvars.ContextVar("calls", default=0)
local = threading.local()


@contextlib.contextmanager
def coupled():
    local.depth = getattr(local, "depth", 0) + 1
    yield
    local.depth -= 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        h = self.a(x)
        calls.set(calls.get() + 1)
        if calls.get() > 3:
            h = h - h.mean(0)
        if getattr(local, "depth", 0):
            h = h.roll(1, 0) + h
        return self.b(F.relu(h))


x, y = torch.randn(100, 6), torch.randint(3, (100,))
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for step, (a, b) in enumerate(DataLoader(TensorDataset(x, y), batch_size=16)):
    with coupled() if step % 3 == 2 else contextlib.nullcontext():
        out = net(a)
    loss = F.cross_entropy(out, b)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.12f}", calls.get())
print(f"{sum(p.abs().sum().item() for p in net.parameters()):.12f}")
torch.save(net.state_dict(), "net.pt")
