"""Copies of the model are evaluated in a thread while the training goes on, and one is trained there."""
import copy
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x, y = torch.randn(160, 6), torch.arange(160) % 3
train = DataLoader(TensorDataset(x[:100], y[:100]), batch_size=7)
val = DataLoader(TensorDataset(x[100:], y[100:]), batch_size=4)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), 0.1)


def epoch(model, optimizer, loader):
    for inputs, labels in loader:
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def evaluate(model):
    model.eval()
    with torch.no_grad():
        losses = [F.cross_entropy(model(x), y, reduction="sum").item() for x, y in val]
        return sum(losses) / len(val.dataset)


def finetune(model):
    return epoch(model, torch.optim.SGD(model.parameters(), 0.01), val)


with ThreadPoolExecutor(1) as pool:
    futures = []
    for _ in range(3):
        print(epoch(model, optimizer, train))
        futures += [pool.submit(act, copy.deepcopy(model)) for act in (evaluate, finetune)]
    print([future.result() for future in futures])
    batch, labels = next(iter(train))
    print(pool.submit(lambda: F.cross_entropy(model(batch), labels).item()).result())
print(epoch(model, optimizer, train))
