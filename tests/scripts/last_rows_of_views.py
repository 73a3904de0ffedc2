"""Copies and results of a part of each row: their layout is one process's, also of a single row."""
import torch
from torch import nn
from torch.nn import functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
net = nn.Linear(5, 5)
MADE = (
    lambda h: h[:, :2].clone(),
    lambda h: h[:, :2] * 2,
    lambda h: torch.zeros_like(h[:, 1:3]),
    lambda h: h[:, :2].contiguous(),
    lambda h: h[:, :2].tanh(),
    lambda h: torch.randn_like(h[:, 1:]),
    lambda h: F.dropout(h[:, 1:]),
    lambda h: h.sort(1).values[:, :2].clone(),
    lambda h: h.T.sin(),
)
for x in torch.utils.data.DataLoader(torch.randn(7, 5), 4):
    h = net(x)
    for made in MADE:
        y = made(h)
        print(y.stride(), y.is_contiguous(), y.reshape(-1).cumsum(0).sum().item(), torch.rand(1).item())
    print(h[:, :2].clone().view(-1).sum().item())
