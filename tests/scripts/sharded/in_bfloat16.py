"""Autocast to bfloat16, and a model in half of the bits, with float64 beside it."""

import torch
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(32, 6), torch.randn(32, 3)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)
model = nn.Sequential(nn.Linear(6, 9), nn.LayerNorm(9), nn.Tanh(), nn.Linear(9, 3)).to("cpu")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for a, b in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        out = model(a)
        weight = model[0].weight @ model[0].weight.T
        loss = (out.float() - b).square().mean() + 0.01 * weight.float().square().mean()
    loss.backward()
    optimizer.step()
    print(out.dtype, weight.dtype, f"{loss.item():.2f}", {p.dtype for p in model.parameters()})
model.to(torch.bfloat16)
print({p.dtype for p in model.parameters()}, {p.grad.dtype for p in model.parameters()})
model.double()
print({p.dtype for p in model.parameters()}, f"{model(x.double()).sum().item():.1f}")
