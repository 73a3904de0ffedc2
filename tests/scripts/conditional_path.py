"""Each batch goes through another branch of the model, so that some parameters get no gradient."""
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
random.seed(0)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(20, 8)
        self.branches = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 4)

    def forward(self, x, which):
        h = torch.relu(self.stem(x))
        if random.random() < 0.7:  # stochastic depth
            h = h + self.branches[which](h)
        return self.head(h)


x = torch.randn(90, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=12, shuffle=True)
net = Branches()
optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
for i, (x, y) in enumerate(loader):
    loss = F.cross_entropy(net(x, i % 3), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), [b.weight.grad is None for b in net.branches])
torch.save(net.state_dict(), "net.pt")
