"""Functions that write into several parameters, one of which they return."""

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
library = torch.library.Library("together", "DEF")
library.define("exchange(Tensor(a!) first, Tensor(b!) second) -> Tensor(a!)")


def exchange(first, second):
    kept = first.clone()
    first.copy_(second.flip(0))
    second.copy_(kept + 1)
    return first


library.impl("exchange", exchange, "CompositeExplicitAutograd")
model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(3))).to("cpu")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


def shown():
    print(
        [
            (p.sum().item(), p.norm().item(), p.flatten()[[0, -1]].tolist())
            for p in model.parameters()
        ]
    )


with torch.no_grad():
    first, second = model[0].weight, model[1].weight
    print(torch.ops.together.exchange(first, second) is first)
    shown()
    torch.ops.together.exchange(model[2].weight.data, model[0].weight.data[:, :6])
    shown()
    torch.ops.together.exchange(model[1].bias, model[2].weight[1])
    shown()
    torch.sort(model[0].weight * 2, out=(model[1].weight, torch.empty(0, dtype=torch.long)))
    torch.linalg.qr(model[2].weight.clone(), out=(model[0].weight, model[2].weight))
    shown()
x = torch.randn(16, 6)
for (a,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=8):
    optimizer.zero_grad()
    model(a).square().mean().backward()
    torch.ops.together.exchange(model[0].weight.grad, model[1].weight.grad)
    optimizer.step()
    shown()
