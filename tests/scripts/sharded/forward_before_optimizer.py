"""A forward before optimizers are made, and Adagrad, which makes its state in its constructor."""

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x, y = torch.randn(24, 6), torch.randn(24, 3)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)


def made():
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 3))


for kind in (torch.optim.Adagrad, torch.optim.AdamW):
    model = made().to("cpu")
    held = [*model.parameters()]
    print(model(x).sum().item(), [p.norm().item() for p in held])
    optimizer = kind(model.parameters(), lr=0.05)
    print(len(optimizer.state), [type(p).__name__ for p in held], held[0].is_leaf)
    for epoch in range(2):
        for a, b in loader:
            loss = (model(a) - b).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for p, q in zip(held, model.parameters(), strict=True):
        assert p is q
        state = optimizer.state[p]
        print(tuple(p.shape), p.norm().item(), {k: v.sum().item() for k, v in state.items()})
