"""Two heads, two criteria, a weighted sum, a penalty on the weights, and a loss with a weight for each element."""

from __future__ import annotations

import inspect

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 16), nn.ReLU())
        self.classify, self.regress = nn.Linear(16, 4), nn.Linear(16, 1)

    def forward(self, x):
        h = self.body(x)
        return {"class": self.classify(h), "value": self.regress(h).squeeze(1)}


x = torch.randn(75, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1), x.sum(1)), batch_size=16, shuffle=True)
net = TwoHeads()
ce, huber = nn.CrossEntropyLoss(), nn.SmoothL1Loss()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
takes = "weight" in inspect.signature(F.l1_loss).parameters  # torch 2.6 does not
for x, label, value in loader:
    out = net(x)
    loss1, loss2 = ce(out["class"], label), huber(out["value"], value)
    penalty = sum(p.abs().sum() for p in net.parameters())
    given = {"weight": value.abs() + 1} if takes else {}  # which torch does not hand on to other classes
    each = F.l1_loss(out["value"], value, **given) + F.l1_loss(out["value"], value, reduction="none", **given)[0]
    loss = loss1 + 0.5 * loss2 + 1e-3 * penalty + 0.1 * each
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), loss1.item(), loss2.item(), penalty.item(), each.item())
    if takes:
        print(F.l1_loss(out["value"], value, None, None, "sum", value.abs()).item())
torch.save(net.state_dict(), "net.pt")
