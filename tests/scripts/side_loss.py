"""A module that leaves a term of the loss on itself."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Bottleneck(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.var, self.decode = nn.Linear(20, 3), nn.Linear(20, 3), nn.Linear(3, 20)
        self.kl = 0

    def forward(self, x):
        mean, var = self.mean(x), self.var(x)
        self.kl = -0.5 * (1 + var - mean**2 - var.exp()).sum(1).mean()
        return self.decode(mean)


loader = DataLoader(TensorDataset(torch.randn(50, 20)), batch_size=12, shuffle=True)
net = Bottleneck()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for (x,) in loader:
    loss = F.mse_loss(net(x), x) + 0.1 * net.kl
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), net.kl.item())
torch.save(net.state_dict(), "net.pt")
