"""Weights that are drawn after the optimizer is there, as one process draws them."""

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Conv1d(1, 5, 3), nn.Flatten(), nn.Linear(35, 3))
model.to("cpu")
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def drawn(module):
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.uniform_(module.bias)


def shown(what):
    print(what, [p.flatten()[[0, -1]].tolist() for p in model.parameters()], torch.rand(1).item())


shown("made")
model.apply(drawn)
shown("applied")
for module in model:
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()
shown("reset")
weights = [p for p in model.parameters() if p.dim() > 1]
for draw in (
    *(nn.init.xavier_uniform_, nn.init.kaiming_normal_, nn.init.orthogonal_, nn.init.normal_),
    lambda p: nn.init.sparse_(p, 0.5) if p.dim() == 2 else nn.init.dirac_(p),
):
    for p in weights:
        draw(p)
    shown("nn.init")
with torch.no_grad():
    for p in model.parameters():
        p.normal_(0, 0.1)
        p.data.uniform_(-0.1, 0.1)
        p.data.add_(torch.randn_like(p), alpha=0.01)
        p.add_(torch.randn(p.shape), alpha=0.01).bernoulli_().add_(torch.rand_like(p.data))
        p.data[:1].exponential_()
        p.mul_(nn.functional.dropout(torch.ones_like(p), 0.3))
    shown("by hand")
x = torch.randn(16, 7)
for (a,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=8):
    optimizer.zero_grad()
    model[4](model[3](model[2](model[1](model[0](a))[:, None]))).square().mean().backward()
    optimizer.step()
    for p in model.parameters():  # Langevin's noise
        p.data.add_(torch.randn_like(p.grad) * 0.01)
    shown("trained")
