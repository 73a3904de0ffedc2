"""Models that couple the batch from the third step on, wherever the change was made."""

from __future__ import annotations

import contextvars
import functools
import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
SETTINGS, context, relu = {"of": {"mix": False}}, contextvars.ContextVar("mix", default=False), F.relu
note = functools.lru_cache(lambda words: print("once:", words))


def activation(h, mix):
    return h - h.mean(0) if mix else h


class Net(nn.Module):
    always = False

    def __init__(self):
        super().__init__()
        self.a, self.b, self.act = nn.Linear(6, 5), nn.Linear(5, 3), functools.partial(activation, mix=False)
        self.calls, self.moves = 0, iter([lambda h: h, lambda h: h.flip(0), torch.tanh, lambda h: h.roll(1, 0)])
        self.register_buffer("gate", torch.zeros(5))

    def forward(self, x):
        self.calls += 1
        note(f"training is {self.training}")
        h = self.a(x)
        h = h + (h @ h.t()).softmax(-1) @ h * self.gate
        mix = self.always or context.get() or SETTINGS["of"]["mix"] or os.environ.get("MIX") == "1"
        return self.b(F.relu(next(self.moves)(self.act(activation(h, mix)))))


CHANGES = {
    "a class": lambda net: setattr(Net, "always", True), "an attribute": lambda net: setattr(net, "always", True),
    "a dictionary": lambda net: SETTINGS["of"].update(mix=True), "a context": lambda net: context.set(True),
    "the environment": lambda net: os.environ.update(MIX="1"), "a buffer": lambda net: net.gate.data.fill_(0.3),
    "a partial": lambda net: setattr(net, "act", functools.partial(activation, mix=True)),
    "a method": lambda net: setattr(net, "forward", lambda x: net.b(net.a(x).cumsum(0))),
    "a function": lambda net: setattr(F, "relu", lambda h: relu(h - h.mean(0))), "none": lambda net: None,
    "a layer": lambda net: setattr(net, "b", nn.Sequential(nn.BatchNorm1d(5), net.b)),
}
for name, change in CHANGES.items():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step, (x, y) in enumerate(DataLoader(TensorDataset(torch.randn(27, 6), torch.arange(27) % 3), 7)):
        change(net) if step == 2 else None
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad(), loss.backward(), optimizer.step(), print(name, loss.item(), net.calls)
    Net.always, SETTINGS["of"]["mix"], os.environ["MIX"], F.relu = False, False, "0", relu
    context.set(False)
