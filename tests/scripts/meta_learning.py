"""MAML: an inner loop of gradient steps per task, support and query; then Reptile on copies."""
import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(64, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
net = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 4))
meta = torch.optim.Adam(net.parameters(), lr=1e-2)


def forward(weights, x):
    return F.linear(torch.tanh(F.linear(x, weights[0], weights[1])), weights[2], weights[3])


for step, (x, y) in enumerate(loader):
    support, query = (x[:8], y[:8]), (x[8:], y[8:])
    fast = dict(net.named_parameters())
    by_hand = list(net.parameters())
    for _ in range(2):
        inner = F.cross_entropy(functional_call(net, fast, (support[0],)), support[1])
        grads = torch.autograd.grad(inner, fast.values(), create_graph=True)
        fast = {k: p - 0.1 * g for (k, p), g in zip(fast.items(), grads)}
        again = F.cross_entropy(forward(by_hand, support[0]), support[1])
        by_hand = [p - 0.1 * g for p, g in zip(by_hand, torch.autograd.grad(again, by_hand, create_graph=True))]
    outer = F.cross_entropy(functional_call(net, fast, (query[0],)), query[1]) + F.cross_entropy(forward(by_hand, query[0]), query[1])
    meta.zero_grad()
    outer.backward()
    meta.step()
    print(step, inner.item(), outer.item(), net[0].weight.grad.norm().item())
for x, y in loader:
    clone = copy.deepcopy(net)
    inner = torch.optim.SGD(clone.parameters(), lr=0.1)
    for _ in range(2):
        loss = F.cross_entropy(clone(x), y)
        inner.zero_grad()
        loss.backward()
        inner.step()
    with torch.no_grad():
        for p, q in zip(net.parameters(), clone.parameters()):
            p.add_(0.5 * (q - p))
    print(loss.item())
torch.save(net.state_dict(), "net.pt")
