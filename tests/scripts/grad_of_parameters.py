"""torch.autograd.grad instead of backward: MAML's inner step, then an update by hand."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(60, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
net = nn.Linear(20, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
for x, y in loader:
    inner = F.cross_entropy(net(x), y)
    gw, gb = torch.autograd.grad(inner, [net.weight, net.bias], create_graph=True)
    outer = F.cross_entropy(F.linear(x, net.weight - 0.1 * gw, net.bias - 0.1 * gb), y)
    optimizer.zero_grad()
    outer.backward()
    optimizer.step()
    plain = torch.autograd.grad(F.cross_entropy(net(x), y), tuple(net.parameters()))
    with torch.no_grad():
        for p, g in zip(net.parameters(), plain):
            p -= 0.1 * g
    print(inner.item(), outer.item(), plain[0].norm().item())
torch.save(net.state_dict(), "net.pt")
