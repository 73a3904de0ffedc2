"""Batches are copied on a side stream while the last one is trained on, as apex and DALI do."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)).double().to(device)
opt = torch.optim.SGD(net.parameters(), 0.01)
data = TensorDataset(torch.randn(512, 64).double(), torch.randn(512, 1).double())
loader = DataLoader(data, 32, pin_memory=device == "cuda")
stream = torch.cuda.Stream() if device == "cuda" else None


def ahead(batches):
    for batch in batches:
        if stream is None:
            yield batch
            continue
        with torch.cuda.stream(stream):
            batch = [x.to(device, non_blocking=True) for x in batch]
        torch.cuda.current_stream().wait_stream(stream)
        for x in batch:
            x.record_stream(torch.cuda.current_stream())
        yield batch


for epoch in range(3):
    for x, y in ahead(loader):
        loss = (net(x) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(loss.item())
