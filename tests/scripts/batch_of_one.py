"""One sample at a time, as in online learning."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(15, 20)
loader = DataLoader(TensorDataset(x, x[:, :1] * 2 + 1), shuffle=True)
net = nn.Sequential(nn.Linear(20, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1))
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for epoch in range(2):
    for x, y in loader:
        loss = criterion(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item(), y.item())
torch.save(net.state_dict(), "net.pt")
