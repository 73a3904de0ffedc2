"""A normalisation of one's own that couples samples in training and keeps a running mean."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class OwnNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("running", torch.zeros(6))

    def forward(self, x):
        mean = self.running
        if self.training:
            mean = x.mean(0)
            self.running.mul_(0.9).add_(0.1 * mean.detach())
        return torch.tanh(x - mean)


x = torch.randn(60, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=12, shuffle=True)
net = nn.Sequential(nn.Linear(20, 6), OwnNorm(), nn.Linear(6, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
for x, y in loader:
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
net.eval()
print(net(torch.ones(6, 20)).sum().item(), net[1].running.tolist())
torch.save(net.state_dict(), "net.pt")
