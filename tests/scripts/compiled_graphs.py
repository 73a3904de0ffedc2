"""Compiled models whose graphs are compiled for rows: BatchNorm, dropout, attention, values that leave, counts."""
import logging

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # that there is no GPU
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x = torch.randn(25, 3, 8, 8)
loader = DataLoader(TensorDataset(x, x[:, 0, 0, :4].argmax(1)), batch_size=15, shuffle=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.qkv, self.last = nn.Linear(8, 24), nn.LayerNorm(8)
        self.out, self.calls, self.kept = nn.Linear(8, 4), 0, None
        self.register_buffer("rows", torch.zeros(()))

    def forward(self, x, y=None):
        self.calls += 1
        self.rows += x.size(0)
        self.kept = x
        h = self.norm(self.conv(x)).relu().flatten(2).transpose(1, 2)
        q, k, v = self.qkv(h).view(h.size(0), -1, 6, 4).transpose(1, 2).chunk(3, 1)
        h = h + ((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).flatten(2)
        h = F.dropout(self.last(h).mean(1), 0.1, self.training)
        if x.size(0) > 12:  # the whole batch, not this rank's rows
            h = h * 1.5
        out = self.out(h)
        return out if y is None else {"out": out, "loss": F.cross_entropy(out, y), "same": x}


@torch.compile
def penalty(out, scale=0.1):
    return out.square().mean() * scale


net = Net()
model = torch.compile(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader:
    found = model(x, y)
    loss = found["loss"] + penalty(found["out"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), found["same"].shape, found["same"].sum().item(), net.kept.sum().item())
model.eval()
with torch.no_grad():
    print(model(x).sum().item(), net.calls, net.rows.item())
print(torch.rand(2).tolist())
torch.save(model.state_dict(), "model.pt")
