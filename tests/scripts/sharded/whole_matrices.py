"""Optimizers that are not pointwise: Newton-Schulz, factors of a matrix, L-BFGS; merged LoRA."""

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x, y = torch.randn(64, 6), torch.randn(64, 5)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32)


def orthogonal(g):
    a = g / g.norm()
    for _ in range(5):
        a = 1.5 * a - 0.5 * a @ a.T @ a
    return a


class Whole(torch.optim.Optimizer):
    def __init__(self, params, kind):
        super().__init__(params, {"lr": 0.05, "kind": kind})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["buffer"] = torch.zeros_like(p)
                    state["factor"] = torch.eye(p.shape[0])
                buffer = state["buffer"].mul_(0.9).add_(p.grad)
                if p.ndim != 2:
                    p.add_(buffer, alpha=-group["lr"])
                elif group["kind"] == "muon":
                    p.add_(orthogonal(p.grad.lerp(buffer, 0.9)), alpha=-group["lr"])
                else:
                    state["factor"] += p.grad @ p.grad.T
                    values, vectors = torch.linalg.eigh(state["factor"])
                    root = vectors @ torch.diag(values**-0.25) @ vectors.T
                    p.sub_(group["lr"] * root @ buffer)


def trained(model, optimizer, name):
    for a, b in loader:
        def closure(a=a, b=b):
            optimizer.zero_grad()
            loss = (model(a) - b).square().mean()
            loss.backward()
            return loss
        loss = optimizer.step(closure) if name == "lbfgs" else closure()
        if name != "lbfgs":
            optimizer.step()
        print(name, loss.item(), [p.norm().item() for p in model.parameters()])


for kind in ("muon", "shampoo", "lbfgs"):
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 5)).to("cpu")
    given = model.parameters()
    trained(model, torch.optim.LBFGS(given) if kind == "lbfgs" else Whole(given, kind), kind)
