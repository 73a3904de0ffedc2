"""Two loaders zipped: labelled and unlabelled data, batches of different sizes in one loss."""
from itertools import cycle

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(30, 20)
labelled = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=8, shuffle=True)
unlabelled = DataLoader(TensorDataset(torch.randn(90, 20)), batch_size=20, shuffle=True)
net = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for (x, y), (u,) in zip(cycle(labelled), unlabelled):
    supervised = F.cross_entropy(net(x), y)
    with torch.no_grad():
        confidence, guess = net(u).softmax(1).max(1)
    mask = (confidence > 0.3).double()
    consistency = (F.cross_entropy(net(u + 0.1 * torch.randn_like(u)), guess, reduction="none") * mask).mean()
    joined = net(torch.cat([x, u]))
    entropy = -(joined.softmax(1) * joined.log_softmax(1)).sum(1).mean()
    loss = supervised + consistency + 0.1 * entropy
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(len(x), len(u), loss.item(), supervised.item(), consistency.item(), mask.sum().item())
torch.save(net.state_dict(), "net.pt")
