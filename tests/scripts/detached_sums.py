"""A detached loss is in the memory of the loss: a write into one reaches the other."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
net = nn.Linear(7, 1)
data = torch.randn(24, 7)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
running = first = None
for (x,) in DataLoader(TensorDataset(data), 6):
    loss = net(x).square().mean() * 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if running is None:
        running, first = loss.detach(), loss
    else:
        running += loss.detach()  # into the first loss, too
print(f"{first.item():.11f} {running.item():.11f}")
kept, log = [], []
for (x,) in DataLoader(TensorDataset(data), 12):
    loss = net(x).square().mean()
    kept.append(loss.detach())
    loss /= 4
    loss.backward()
    log.append(loss.detach())
    log[-1] *= 3
print([f"{value.item():.11f}" for value in kept + log], f"{net.weight.grad.sum().item():.11f}")
for (x,) in DataLoader(TensorDataset(data), 12):
    seen = {}
    for read in (False, True):
        total = net(x).mean() * 2 + net(x).square().mean()
        count = (net(x) > 0).sum()
        if read:
            print(f"{total.item():.11f} {count.item()}")
        alias, other = total.detach(), total.detach().detach()
        alias += 5
        whole = count.detach()
        whole += 5
        seen[read] = [total.item(), alias.item(), other.item(), (total * 2 + alias).item()]
        print([f"{value:.11f}" for value in seen[read]], count.item(), whole.item())
        same = total.detach().double()
        same -= 1
        copy = total.detach().clone() + total.float().double()
        copy.zero_()
        print(f"{total.item():.11f} {same.item():.11f} {total.requires_grad} {same.requires_grad}")
    with torch.no_grad():
        mean = net(x).mean()
        mean.detach().add_(1)
        print(f"{mean.item():.11f}")
