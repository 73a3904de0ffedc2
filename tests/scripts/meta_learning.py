"""MAML: an inner loop of gradient steps per task, by functional_call and by hand; then Reptile on copies."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.vars = nn.ParameterList([torch.randn(4, 20) * 0.2, torch.zeros(4)])

    def forward(self, x, vars=None):
        weight, bias = vars or self.vars
        return F.linear(x, weight, bias)

    def parameters(self):  # of its own, and without arguments, as in implementations of MAML
        return self.vars


x = torch.randn(64, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
net, learner = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 4)), Learner()
meta = torch.optim.Adam([*net.parameters(), *learner.parameters()], lr=1e-2)
for step, (x, y) in enumerate(loader):
    support, query = (x[:8], y[:8]), (x[8:], y[8:])
    fast, by_hand = dict(net.named_parameters()), list(learner.parameters())
    for _ in range(2):
        inner = F.cross_entropy(functional_call(net, fast, (support[0],)), support[1])
        grads = torch.autograd.grad(inner, fast.values(), create_graph=True)
        fast = {k: p - 0.1 * g for (k, p), g in zip(fast.items(), grads)}
        again = F.cross_entropy(learner(support[0], by_hand), support[1])
        by_hand = [p - 0.1 * g for p, g in zip(by_hand, torch.autograd.grad(again, by_hand, create_graph=True))]
    outer = F.cross_entropy(functional_call(net, fast, (query[0],)), query[1])
    outer = outer + F.cross_entropy(learner(query[0], by_hand), query[1])
    meta.zero_grad(), outer.backward(), meta.step()
    print(step, inner.item(), again.item(), outer.item(), net[0].weight.grad.norm().item())
for x, y in loader:
    clone = copy.deepcopy(net)
    for _ in range(2):
        loss = F.cross_entropy(clone(x), y)
        grads = torch.autograd.grad(loss, tuple(clone.parameters()))
        with torch.no_grad():
            for p, g in zip(clone.parameters(), grads):
                p -= 0.1 * g
    with torch.no_grad():
        for p, q in zip(net.parameters(), clone.parameters()):
            p.add_(0.5 * (q - p))
    print(loss.item())
torch.save([net.state_dict(), learner.state_dict()], "net.pt")
