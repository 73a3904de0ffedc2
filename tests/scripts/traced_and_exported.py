"""Models and losses by torch.jit.script, saved and loaded; a batch as the example of trace, add_graph and export."""

from __future__ import annotations

import os
import shutil
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

warnings.filterwarnings("ignore", category=FutureWarning)
warnings.filterwarnings("ignore", category=DeprecationWarning)
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.bn, self.c = nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)
        self.inorm = nn.InstanceNorm1d(6, track_running_stats=True)

    def forward(self, x):
        h = self.bn(self.a(x))
        h = self.inorm(h.unsqueeze(2).repeat(1, 1, 4)).mean(2) + h
        return self.c(torch.relu(F.dropout(h, 0.1, self.training)))


@torch.jit.script
def criterion(a, b):
    return F.l1_loss(a, b) + F.mse_loss(a, b)


loader = DataLoader(TensorDataset(torch.randn(29, 8), torch.randn(29, 2)), batch_size=8)
x, y = next(iter(loader))
plain = Net().eval()
writer = SummaryWriter("runs")
writer.add_graph(plain, x.to("cpu"))
writer.close()
shutil.rmtree("runs")
traced = torch.jit.trace(plain, (x,))
both = torch.jit.trace(lambda a, b: a.sum(1) * b[:, 0], (x, y))
exported = torch.export.export(plain, (x,))
print(traced.graph, [node.name for node in exported.graph.nodes], exported.module()(x).sum().item())
for net in torch.jit.script(Net()), plain.train():
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in loader:
        loss = criterion(net(x), y)
        optimizer.zero_grad(), loss.backward(), optimizer.step(), print(loss.item(), both(x, y).sum().item())
        print(traced(x).sum().item())
    torch.save(net.state_dict(), "net.pt")
torch.jit.save(torch.jit.script(plain), "plain.pt")
print(torch.jit.load("plain.pt").eval()(torch.ones(2, 8)).sum().item())
os.remove("plain.pt")  # it holds the path of this file
