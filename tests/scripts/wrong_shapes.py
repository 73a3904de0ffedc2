"""Batches of a wrong shape, whose errors are caught and printed: they name the whole batch's."""
import torch
import torch.nn.functional as F
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x, factor=None, least=0):
        h = self.drop(self.norm(self.first(x)).relu())
        if factor is not None:
            h = h @ factor
        if len(x) < least:
            raise ValueError(f"only {len(x)} rows")
        return self.last(h)


class Says(nn.Embedding):
    def forward(self, ids):
        print("looking up", len(ids))
        return super().forward(ids)


net, says = Net(), Says(10, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
calls = {
    1: lambda x: net(x, torch.ones(8, 8)),
    2: lambda x: net(x[:, :5]),
    3: lambda x: net(x, torch.ones(7, 8)),
    4: lambda x: net(x, least=11),
    5: lambda x: net(x) + torch.ones(10, 4),
    6: lambda x: net(x) @ torch.ones(4, 3),
    7: lambda x: F.cross_entropy(net(x), torch.zeros(9, dtype=torch.long)),
    8: lambda x: net(x).view(7, 3),
    9: lambda x: F.linear(net(x), torch.ones(2, 4)),
}
for step in range(12):
    x = torch.randn(10, 6)
    try:
        loss = calls.get(step, net)(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item())
    except (RuntimeError, ValueError) as error:
        print(step, error, net.norm.num_batches_tracked.item(), torch.rand(1).item())
for step in range(4):
    try:
        print(says(torch.arange(10) + 10 * (step == 2)).sum().item())
    except IndexError as error:
        print(error)
torch.save(net.state_dict(), "net.pt")
