"""Class weights, ignored targets, and gradients accumulated over four batches."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(80, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=8, shuffle=True)
net = nn.Linear(20, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
class_weights = torch.tensor([1.0, 2.0, 0.5, 3.0])
for i, (x, y) in enumerate(loader):
    y = torch.where(x[:, 9] > 0.3, torch.full_like(y, -100), y)
    loss = F.cross_entropy(net(x), y, weight=class_weights) / 4
    loss.backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
    print(i, loss.item(), (y == -100).sum().item())
torch.save(net.state_dict(), "net.pt")
