"""Evaluation in inference mode between forwards, a shape that is changed in place, whole models."""

import copy

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x, y = torch.randn(24, 6), torch.randn(24, 3)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)
model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 3))
optimizer = torch.optim.AdamW(model.to("cpu").parameters(), lr=0.05)
for a, b in loader:
    optimizer.zero_grad()
    with torch.inference_mode():
        before = model(a).sum().item()
        kept = model[0].weight.clone()
        turned = model[2].weight.T
        sizes = [p.data.t_().shape for p in model.parameters()]
    loss = (model(a) - b).square().mean()
    with torch.inference_mode():
        print(before, turned.is_inference(), kept.is_inference(), kept.sum().item(), sizes)
        model[0].weight[0] = 0.5
        model[4].bias.add_(0.1)
    loss.backward() if model[0].weight.grad is None else None
    optimizer.step()
    with torch.inference_mode():
        row = model[2].weight[1]
        row.fill_(0.25)
        model[2].weight.T[0].mul_(2)
        model[4].weight.view(-1)[5:7].add_(1)
        print(row.tolist(), model[4].weight.sum().item())
    half = copy.deepcopy(model).half()
    print({p.dtype for p in half.parameters()}, sum(p.float().sum() for p in half.parameters()).item())
    print(loss.item(), [p.norm().item() for p in model.parameters()])
torch.save(model, "model.pt")
again = torch.load("model.pt", weights_only=False)
print(again, [torch.equal(p, q) for p, q in zip(again.parameters(), model.parameters())])
print([p.norm().item() for p in again.parameters()])
