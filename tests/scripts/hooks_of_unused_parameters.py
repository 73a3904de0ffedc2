"""Hooks of parameters that no gradient reaches are not called; some step in a backward."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
net = nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)])
names = {p: name for name, p in net.named_parameters()}
steps = {p: torch.optim.SGD([p], 0.01, momentum=0.9) for p in net.parameters()}
called = {}


def step(p):
    called[names[p]] = called.get(names[p], 0) + 1
    steps[p].step()
    if called[names[p]] % 2:  # else its gradient grows
        steps[p].zero_grad()


for name, p in net.named_parameters():
    p.register_post_accumulate_grad_hook(step)
    p.register_hook(lambda g: g.clamp(-1, 1))
for number in range(8):
    x = torch.randn(2 if number % 3 == 1 else 6, 4)
    hidden = net[0](x)
    if number % 2:
        hidden = checkpoint(net[1], hidden, use_reentrant=number > 4)
    if number > 2:
        hidden = checkpoint(net[2], hidden.tanh(), use_reentrant=number % 4 == 0)
    loss = net[3](hidden).square().mean()
    loss.backward()
    print(f"{loss.item():.11f}", sorted(called.items()))
print([f"{p.sum().item():.11f}" for p in net.parameters()])
