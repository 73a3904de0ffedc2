"""Modes of the script see, and change, its own functions alone."""

from collections import Counter

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen[str(func)] += 1
        return func(*args, **kwargs or {})


class Rounded(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **kwargs or {})
        if any(word in str(func) for word in (".mm.", ".addmm.", ".cat.", ".sum.", "clone")):
            out = out.float().double()
        return out


class Functions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen[getattr(func, "__name__", "")] += 1
        return func(*args, **kwargs or {})


torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
data = TensorDataset(torch.randn(24, 5), torch.randn(24, 1))
parts = nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 1)
net, unused = nn.Sequential(*parts), nn.Linear(2, 2)
optimizer = torch.optim.SGD([*net.parameters(), *unused.parameters()], 0.1, momentum=0.9)
for epoch in range(4):
    for number, (x, y) in enumerate(DataLoader(data, 8, shuffle=True)):
        mode = (Functions, Operators, Rounded)[(number + epoch) % 3]()
        with mode:
            loss = nn.functional.mse_loss(net(x), y) + 0 * unused.weight.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if not isinstance(mode, Rounded):
            print(sorted((k, n) for k, n in mode.seen.items() if k not in ("dim", "device")))
        print(f"{loss.item():.11f}", [f"{p.sum().item():.10f}" for p in net.parameters()])
for x in (torch.randn(1, 5), torch.randn(6, 5)):
    with Operators() as operators, Functions() as functions:
        out = net.eval()(x)
    print(out.sum().item(), sorted(operators.seen.items()), sorted(functions.seen.items()))
