"""The norm of the gradient is part of the loss: create_graph on the parameters, then a second backward."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(60, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
net = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader:
    loss = F.cross_entropy(net(x), y)
    grads = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
    penalty = sum(g.pow(2).sum() for g in grads)
    total = loss + 0.1 * penalty
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
    print(loss.item(), penalty.item(), net[0].weight.grad.norm().item())
torch.save(net.state_dict(), "net.pt")
