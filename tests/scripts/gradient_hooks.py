"""Hooks on parameters clamp their gradients; another on an activation counts and scales."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(60, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
net = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))
for p in net.parameters():
    p.register_hook(lambda grad: grad.clamp(-0.02, 0.02))
optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
for x, y in loader:
    output = net(x)
    output.register_hook(lambda grad: grad * 2)
    loss = F.cross_entropy(output, y)
    optimizer.zero_grad()
    loss.backward()
    largest = max(p.grad.abs().max().item() for p in net.parameters())
    optimizer.step()
    print(loss.item(), largest)
torch.save(net.state_dict(), "net.pt")
