"""Averages by deepcopy, weights that are changed by hand and swapped in, an error meanwhile."""

import contextlib
import copy

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x, y = torch.randn(32, 6), torch.randn(32, 3)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)
model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.BatchNorm1d(9), nn.Linear(9, 3)).to("cpu")
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
average = copy.deepcopy(model).requires_grad_(False)
swa = torch.optim.swa_utils.AveragedModel(model)
shadow = {name: p.clone().detach() for name, p in model.named_parameters()}


@contextlib.contextmanager
def swapped():
    kept = [p.data for p in model.parameters()]
    for p, q in zip(model.parameters(), average.parameters(), strict=True):
        p.data = q.data
    try:
        yield
    finally:
        for p, old in zip(model.parameters(), kept, strict=True):
            p.data = old


def shown(what):
    return what, [p.double().sum().item() for p in model.parameters()], model(x).sum().item()


for a, b in loader:
    optimizer.zero_grad()
    (model(a) - b).square().mean().backward()
    optimizer.step()
    swa.update_parameters(model)
    with torch.no_grad():
        for p, q in zip(average.parameters(), model.parameters(), strict=True):
            p.mul_(0.9).add_(q, alpha=0.1)
        for name, p in model.named_parameters():
            shadow[name].lerp_(p, 0.2)
            p.data[0] *= 0.5
            p[-1:].add_(0.01)
    model.eval()
    with contextlib.suppress(ZeroDivisionError), swapped():
        print(shown("average"))
        print(1 // 0)
    print(shown("model"), average(x).sum().item(), swa(x).sum().item())
    model.train()
print({name: value.norm().item() for name, value in shadow.items()})
print([torch.equal(p, q) for p, q in zip(model.parameters(), copy.deepcopy(model).parameters())])
