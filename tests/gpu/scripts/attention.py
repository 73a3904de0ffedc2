"""Attention with dropout inside its kernel, under autocast in bfloat16: each rank draws its own masks."""

import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
layer = nn.TransformerEncoderLayer(64, 4, 128, 0.1, batch_first=True)
net = nn.Sequential(
    nn.Embedding(50, 64), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, 2)
).to(device)
opt = torch.optim.AdamW(net.parameters(), 1e-3)
x = torch.randint(50, (256, 16))
y = (x[:, 0] < 25).long()
for epoch in range(6):
    for a, b in zip(x.split(32), y.split(32)):
        with torch.autocast(device, torch.bfloat16):
            loss = nn.functional.cross_entropy(net(a.to(device))[:, 0].float(), b.to(device))
        opt.zero_grad()
        loss.backward()
        opt.step()
net.eval()
with torch.no_grad():
    print("learned", (net(x.to(device))[:, 0].argmax(-1).cpu() == y).double().mean().item() > 0.9)
