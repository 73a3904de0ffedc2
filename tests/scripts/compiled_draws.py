"""Compiled models that drop and draw: as often compiled, and the masks and noise of one process."""
import logging

import torch
import torch.nn.functional as F
import torch._inductor.config
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # that there is no GPU
torch._inductor.config.fallback_random = True
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(80, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)


def backend(graph, inputs):
    def run(*given):
        return graph.forward(*given)

    return run


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(20, 16), nn.Linear(16, 4)

    def forward(self, x):
        h = F.dropout(self.a(x + 0.1 * torch.randn_like(x)).relu(), 0.3, self.training)
        h = F.alpha_dropout(h, 0.2, self.training) * torch.empty_like(h).uniform_(0.5, 1.5)
        return self.b(h)


def train(name, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(name, loss.item())
    print(torch.rand(2).tolist())


train("counted", torch.compile(Noisy(), backend=backend, fullgraph=True))
train("eager", torch.compile(Noisy(), backend="aot_eager", fullgraph=True))
drops = nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 4))
train("normed", torch.compile(drops, backend="aot_eager", fullgraph=True))
train("inductor", torch.compile(drops, fullgraph=True))
