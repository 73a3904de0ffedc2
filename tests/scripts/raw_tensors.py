"""Weights that are plain tensors with requires_grad, or moved and replaced; by hand, then by an optimizer."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(60, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
w1 = torch.randn(20, 16) * 0.1
b1 = torch.zeros(16)
w2 = torch.randn(16, 4) * 0.1
for t in (w1, b1, w2):
    t.requires_grad_()
for x, y in loader:
    loss = F.cross_entropy(torch.tanh(x @ w1 + b1) @ w2, y)
    loss.backward()
    with torch.no_grad():
        for t in (w1, b1, w2):
            t -= 0.5 * t.grad
            t.grad.zero_()
    print(loss.item())
optimizer = torch.optim.Adam([w1, b1, w2], lr=1e-2)
for x, y in loader:
    loss = F.cross_entropy(torch.tanh(torch.addmm(b1, x, w1)).mm(w2), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), w2.grad.norm().item())
net = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 4))
for kind in (torch.float32, torch.float64):
    net.to("cpu").to(kind).to(torch.float64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for p in net.parameters():
        p.data = p.data.clone()
    for x, y in loader:
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(kind, loss.item())
torch.save([w1, b1, w2, net.state_dict()], "weights.pt")
