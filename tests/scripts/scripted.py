"""Modules, losses and norms that torch.jit.script compiles, and one that is saved."""
import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.bn, self.inorm, self.c = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.InstanceNorm1d(8, track_running_stats=True), nn.Linear(8, 3)
    def forward(self, x):
        h = self.bn(self.a(x))
        h = self.inorm(h.unsqueeze(2).repeat(1, 1, 4)).mean(2) + h
        h = F.dropout(h, 0.1, self.training)
        return self.c(torch.relu(h))
@torch.jit.script
def criterion(a, b):
    return F.l1_loss(a, b) + F.mse_loss(a, b)
net = torch.jit.script(Net())
opt = torch.optim.SGD(net.parameters(), lr=.1)
data = TensorDataset(torch.randn(22, 6), torch.randn(22, 3))
for x, y in DataLoader(data, batch_size=5):
    loss = criterion(net(x), y); opt.zero_grad(); loss.backward(); opt.step(); print(loss.item())
net.eval(); print(net(data.tensors[0]).sum().item())
plain = Net()
torch.jit.script(plain).save("plain.pt")
print(torch.jit.load("plain.pt").eval()(torch.ones(2, 6)).sum().item())
os.remove("plain.pt")  # it holds the path of this file
