"""Models that come to couple rows when something is set that their code reads: wherever it lies."""
from argparse import Namespace
from functools import partial

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
FLAGS = {"of": {"mix": False}}


class Own:
    mix = False


class Inner(dict):
    __getattr__, __setattr__ = dict.__getitem__, dict.__setitem__


def acted(h, mix):
    return h - h.mean(0) if mix or FLAGS["of"]["mix"] else h


class Net(nn.Module):
    limit = False

    def __init__(self, way):
        super().__init__()
        self.a, self.b, self.way, self.act = nn.Linear(6, 5), nn.Linear(5, 3), way, partial(acted, mix=False)
        self.own, self.inner, self.at, self.kept = Own(), Inner(mix=False), [], ()
        self.many = Namespace(mix=False, **{f"n{k}": k for k in range(70)})
        self.register_buffer("step", torch.tensor(0))

    def forward(self, x):
        set_now = self.own.mix or Own.mix or self.limit or self.inner.mix or 1 in self.at or 1 in self.kept
        if self.way == "a buffer":
            set_now = self.step > 1
        if self.way == "a draw":
            set_now = torch.rand(1) < 0.4
        return self.b(acted(self.a(x), True) if set_now or self.many.mix else self.act(self.a(x)))


WAYS = {
    "an object": lambda net: setattr(net.own, "mix", True), "a class": lambda net: setattr(Own, "mix", True),
    "its class": lambda net: setattr(Net, "limit", True), "a kind of dict": lambda net: net.inner.update(mix=True),
    "a list": lambda net: net.at.append(1), "a tuple": lambda net: setattr(net, "kept", (1,)),
    "a partial": lambda net: setattr(net, "act", partial(acted, mix=True)), "a draw": lambda net: None,
    "many": lambda net: setattr(net.many, "mix", True), "a buffer": lambda net: net.step.add_(2),
    "a dict of dicts": lambda net: FLAGS["of"].update(mix=True),
}
for name, change in WAYS.items():
    net = Net(name)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step, (x, y) in enumerate(DataLoader(TensorDataset(torch.randn(28, 6), torch.arange(28) % 3), 7)):
        change(net) if step == 2 else None
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad(), loss.backward(), optimizer.step(), print(name, loss.item(), torch.rand(()).item())
    Own.mix = Net.limit = FLAGS["of"]["mix"] = False
