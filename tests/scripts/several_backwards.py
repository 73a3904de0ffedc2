"""Several backwards of one forward: a retained graph, chosen inputs, a list of losses, a vector of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x = torch.randn(60, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
body, head, aux = nn.Sequential(nn.Linear(20, 16), nn.ReLU()), nn.Linear(16, 4), nn.Linear(16, 20)
net = nn.ModuleList([body, head, aux])
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def norms():
    return [None if p.grad is None else p.grad.norm().item() for p in net.parameters()]


for x, y in loader:
    h = body(x)
    h.retain_grad()
    main, side = F.cross_entropy(head(h), y), F.mse_loss(aux(h), x)
    optimizer.zero_grad()
    main.backward(retain_graph=True)
    print("main", norms())
    side.backward()
    optimizer.step()
    print("side", main.item(), side.item(), norms(), h.grad.norm().item())
for x, y in loader:
    h = body(x)
    loss = F.cross_entropy(head(h), y)
    adversarial = -0.1 * F.cross_entropy(head(h), (y + 1) % 4)
    optimizer.zero_grad()
    loss.backward(inputs=list(head.parameters()), retain_graph=True)
    print("head", loss.item(), norms())
    adversarial.backward(inputs=list(body.parameters()))
    optimizer.step()
    print("body", adversarial.item(), norms())
for x, y in loader:
    optimizer.zero_grad()
    losses = [F.cross_entropy(head(body(x)), y), F.l1_loss(aux(body(x)), x)]
    torch.autograd.backward(losses)
    each = F.cross_entropy(head(body(x)), y, reduction="none")
    each.backward(torch.full_like(each, 0.5 / len(each)))
    optimizer.step()
    print("list", [loss.item() for loss in losses], each.sum().item(), norms())
torch.save(net.state_dict(), "net.pt")
