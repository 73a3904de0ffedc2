"""Every optimizer of torch, one tensor at a time, by lists, and fused."""

import inspect

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
x = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=8)
MORE = {"SGD": {"momentum": 0.9, "nesterov": True}, "RMSprop": {"momentum": 0.5, "centered": True}}
for name in sorted(dir(torch.optim)):
    kind = getattr(torch.optim, name)
    if not inspect.isclass(kind) or name in ("Optimizer", "LBFGS", "SparseAdam", "Muon"):
        continue
    known = inspect.signature(kind).parameters
    ways = [{}, *({way: True} for way in ("foreach", "fused", "maximize", "amsgrad") if way in known)]
    for way in ways:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3)).to("cpu")
        try:
            optimizer = kind(model.parameters(), lr=0.01, **way, **MORE.get(name, {}))
        except RuntimeError as error:
            print(name, way, error)
            continue
        for (batch,) in loader:
            optimizer.zero_grad()
            (model(batch) - 1).square().mean().backward()
            optimizer.step()
        states = optimizer.state_dict()["state"].values()
        print(name, way, [p.sum().item() for p in model.parameters()])
        print([{k: float(torch.as_tensor(v).sum()) for k, v in state.items()} for state in states])
