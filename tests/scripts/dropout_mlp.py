"""Dropout in a model; what the generator gives afterwards is printed too."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(90, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
net = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for epoch in range(2):
    for x, y in loader:
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())
print(torch.rand(1).item())
torch.save(net.state_dict(), "net.pt")
