"""Metrics of counts: the same count of right rows is the same number, whichever rows are right."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
net = nn.Linear(8, 3)
x = torch.randn(49, 8)
right = net(x).argmax(1)
epochs = [torch.where(torch.randperm(49) < 13, right, 3) for _ in range(40)]
METRICS = {
    "sum / n": lambda hit: hit.sum() / 49,
    "100 * sum / n": lambda hit: 100.0 * hit.sum() / 49,
    "sum.float() / n": lambda hit: hit.sum().float() / 49,
    "float().sum() * f": lambda hit: hit.float().sum() * (100.0 / 49),
    "double().mean()": lambda hit: hit.double().mean(),
    "double().mean(0)": lambda hit: hit.double().mean(0),
    "columns": lambda hit: hit.unsqueeze(1).expand(-1, 2).float().mean(0)[1],
    "error": lambda hit: 1 - hit.double().sum() / 49,
    "weighted": lambda hit: 0.3 * hit.sum().double() + (1 - 0.3) * hit.sum().double(),
    "with a tensor": lambda hit: torch.tensor(0.1) * hit.sum() - torch.tensor(0.7),
    "negative": lambda hit: -(hit.sum() * 0.1) / 3,
    "loss of counts": lambda hit: nn.functional.l1_loss(hit.double(), torch.zeros(49).double()),
}
for name, metric in METRICS.items():
    best, saves, seen, correct, total = -100.0, 0, set(), 0.0, 0.0
    for y in epochs:
        running = 0.0
        for features, target in DataLoader(TensorDataset(x, y), 49):
            found = metric(net(features).argmax(1).eq(target))
            running += found
            total += found
        seen.add(float(running))
        correct += int("%d" % (running * 4900))
        if running > best:
            best, saves = running, saves + 1
    print(name, "saved", saves, "different", len(seen), "as whole numbers", correct)
    print(f"{total.item():.12f}")
factor = torch.tensor(0.5)
for features, target in DataLoader(TensorDataset(x, right), 49):
    weighted = net(features).argmax(1).eq(target).sum() * factor
    factor += 1  # behind the product
    print(weighted, factor)
running = 0
for features, target in DataLoader(TensorDataset(x, right), 7):
    running += (net(features) - target.unsqueeze(1)).square().mean() / 7
print(f"{running.item():.6f} {running.requires_grad} {running.dtype}")
