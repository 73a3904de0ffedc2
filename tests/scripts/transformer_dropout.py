"""A transformer encoder with dropout in its attention; the evaluation counts hits."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

data = TensorDataset(torch.randint(11, (40, 7)), torch.randint(3, (40,)))
loader = DataLoader(data, batch_size=9, shuffle=True)
layer = nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16, dropout=0.2, batch_first=True)
net = nn.Sequential(
    nn.Embedding(11, 8), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(56, 3)
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader:
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
net.eval()
with torch.no_grad():
    print(sum((net(x).argmax(1) == y).sum().item() for x, y in loader) / len(data))
torch.save(net.state_dict(), "net.pt")
