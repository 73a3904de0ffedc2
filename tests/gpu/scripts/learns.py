"""Dropout inside a kernel, which draws each rank's masks by itself: `attention` in bfloat16, or `recurrent`."""

import sys

import torch
from here import device
from torch import nn

torch.manual_seed(0)
if sys.argv[1] == "attention":
    layer = nn.TransformerEncoderLayer(64, 4, 128, 0.1, batch_first=True)
    net = nn.Sequential(nn.Embedding(50, 64), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    x = torch.randint(50, (256, 16))
    y = (x[:, 0] < 25).long()
else:
    net = nn.LSTM(8, 64, 2, dropout=0.2, batch_first=True)
    x = torch.randn(256, 6, 8)
    y = (x.sum((1, 2)) > 0).long()
net, head = net.to(device), nn.Linear(64, 2).to(device)
opt = torch.optim.AdamW([*net.parameters(), *head.parameters()], 2e-3)


def logits(x):
    out = net(x.to(device))
    return head(out[:, 0] if sys.argv[1] == "attention" else out[0][:, -1]).float()


for epoch in range(8):
    for a, b in zip(x.split(32), y.split(32)):
        with torch.autocast(device.type, torch.bfloat16, enabled=sys.argv[1] == "attention"):
            loss = nn.functional.cross_entropy(logits(a), b.to(device))
        opt.zero_grad()
        loss.backward()
        opt.step()
net.eval()
with torch.no_grad():
    print("learned", (logits(x).argmax(-1).cpu() == y).double().mean().item() > 0.9)
