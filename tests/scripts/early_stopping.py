"""Stops when the validation loss has not improved twice, and goes back to the best weights."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


def noisy(n):
    return TensorDataset(torch.randn(n, 20), torch.randint(4, (n,)))


train, val = DataLoader(noisy(50), batch_size=16, shuffle=True), DataLoader(noisy(29), batch_size=16)
net = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
best, bad = float("inf"), 0
for epoch in range(20):
    for x, y in train:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        loss = sum(F.cross_entropy(net(x), y) * len(x) for x, y in val) / len(val.dataset)
    print(epoch, loss.item())
    if loss < best:
        best, bad = loss, 0
        torch.save(net.state_dict(), "best.pt")
    else:
        bad += 1
        if bad == 2:
            print("stopped at", epoch)
            break
net.load_state_dict(torch.load("best.pt"))
print(best.item(), net[0].weight.sum().item())
