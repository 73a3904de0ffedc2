"""torch.compile of models with BatchNorm and InstanceNorm: two backends, no graph breaks, short batches."""
import logging

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # that there is no GPU
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(34, 3, 6, 6)
data = TensorDataset(x, x[:, :, 0, 0].argmax(1))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 1)
        self.of_a, self.of_b = nn.BatchNorm2d(4), nn.BatchNorm2d(4, momentum=0.4)
        self.each = nn.InstanceNorm2d(4, track_running_stats=True)

    def forward(self, x):
        return self.each(F.relu(self.of_a(self.a(x)) + self.of_b(self.b(x))))


class Scored(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(108, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

    def forward(self, x, y):
        logits = self.body(x)
        return logits, F.cross_entropy(logits, y)


def train(name, net, model, scored=False, full=False):
    loader = DataLoader(data, batch_size=16, drop_last=full)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        loss = model(x, y)[1] if scored else F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(name, loss.item())
    model.eval()
    with torch.no_grad():
        print(name, full or sum((model(x, y)[0] if scored else model(x)).square().sum() for x, y in loader))
    torch.save(net.state_dict(), f"{name}.pt")


net = nn.Sequential(nn.Flatten(), nn.Linear(108, 8), nn.BatchNorm1d(8, momentum=0.3), nn.Linear(8, 3))
train("eager", net, torch.compile(net, backend="aot_eager"))  # the last batch has two rows
net = nn.Sequential(Block(), nn.Flatten(), nn.Linear(144, 3))
train("inductor", net, torch.compile(net, fullgraph=True), full=True)
scored = Scored()
train("scored", scored, torch.compile(scored, backend="aot_eager", fullgraph=True), scored=True)
