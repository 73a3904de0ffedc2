"""Contrastive learning: every sample against every other of the batch."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

loader = DataLoader(TensorDataset(torch.randn(61, 20)), batch_size=16, shuffle=True)
net = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 8))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for epoch in range(2):
    for (x,) in loader:
        n = len(x)
        views = torch.cat([x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)])
        features = F.normalize(net(views), dim=1)
        similarity = features @ features.T / 0.5
        similarity.fill_diagonal_(-1e9)
        targets = torch.cat([torch.arange(n) + n, torch.arange(n)])
        loss = F.cross_entropy(similarity, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        top1 = (similarity.argmax(1) == targets).double().mean()
        print(loss.item(), top1.item())
torch.save(net.state_dict(), "infonce.pt")
