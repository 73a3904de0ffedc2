"""A WeightedRandomSampler draws the rare class more often."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(60, 20)
y = (x[:, 0] > 1).long()
weights = (1.0 / y.bincount())[y]
sampler = WeightedRandomSampler(weights, num_samples=70, replacement=True)
loader = DataLoader(TensorDataset(x, y), batch_size=16, sampler=sampler)
net = nn.Linear(20, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
for epoch in range(2):
    positives = 0
    for x, y in loader:
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        positives += y.sum().item()
        print(loss.item())
    print(epoch, positives)
torch.save(net.state_dict(), "net.pt")
