"""Norms of gradients that are logged, and those that clip; a scaler that skips a step."""

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, parameters_to_vector

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x, y = torch.randn(40, 6), torch.randn(40, 3)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)
model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step, (a, b) in enumerate(loader):
    optimizer.zero_grad()
    (model(a) - b).square().mean().backward()
    grads = [p.grad for p in model.parameters()]
    by_hand = sum(g.square().sum() for g in grads).sqrt()
    each = torch.stack([g.detach().norm() for g in grads]).norm()
    print(by_hand.item(), each.item(), torch.cat([g.flatten() for g in grads]).norm().item())
    print([g.norm(p).item() for g in grads[:2] for p in (1, 2, 3, float("inf"), 0)])
    print([f(g).item() for g in grads[:2] for f in (torch.mean, torch.var, torch.max, torch.sum)])
    print(max(g.abs().max() for g in grads).item(), torch.isnan(grads[0]).any().item())
    if step % 2:
        print(clip_grad_norm_(model.parameters(), 0.1).item())
        print(clip_grad_norm_(model.parameters(), 0.05, norm_type=float("inf")).item())
    else:
        clip_grad_value_(model.parameters(), 0.01)
    optimizer.step()
print(parameters_to_vector(model.parameters()).norm().item())
scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
for step, (a, b) in enumerate(loader):
    optimizer.zero_grad()
    loss = (model(a) - b).square().mean()
    scaler.scale(loss * (float("inf") if step == 2 else 1.0)).backward()
    scaler.unscale_(optimizer)
    norm = clip_grad_norm_(model.parameters(), 1.0).item()
    scaler.step(optimizer)
    scaler.update()
    print(norm, scaler.get_scale(), parameters_to_vector(model.parameters()).norm().item())
