"""The script replaces torch's functions and a layer's methods while it trains, and puts them back."""
import types

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
relu, linear, tanh = F.relu, F.linear, torch.tanh


def centred(x, inplace=False):
    return relu(x - x.mean(0))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.act = nn.Linear(6, 8), nn.Linear(8, 3), nn.ReLU()

    def forward(self, x):
        return self.b(self.act(torch.tanh(self.a(x))))


x, y = torch.randn(130, 6), torch.randint(3, (130,))
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for step, (a, b) in enumerate(DataLoader(TensorDataset(x, y), batch_size=16)):
    F.relu = centred if step in (2, 5) else relu
    F.linear = (lambda x, w, b=None: linear(x, w, b).flip(0)) if step == 3 else linear
    torch.tanh = (lambda x: tanh(x) / x.norm()) if step == 4 else tanh
    if step == 5:
        net.act.forward = types.MethodType(lambda self, x: relu(x) * len(x) / 10, net.act)
    if step == 6:
        net.act.__class__ = type("Own", (nn.ReLU,), {"extra_repr": lambda self: ""})
        del net.act.forward
    if step == 7:
        type(net.act).forward = lambda self, x: x.cumsum(0)
    optimizer.zero_grad()
    loss = F.cross_entropy(net(a), b)
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.12f}")
print(f"{sum(p.abs().sum().item() for p in net.parameters()):.12f}")
torch.save(net.state_dict(), "net.pt")
