"""BatchNorms whose weights are computed: fast weights of meta-learning, and from the batch."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

data = TensorDataset(torch.randn(75, 6, 4), torch.randint(3, (75,)))
net = nn.Sequential(nn.Conv1d(6, 5, 3), nn.BatchNorm1d(5), nn.Tanh(), nn.Flatten(), nn.Linear(10, 3))
optimizer = torch.optim.SGD(net.parameters(), 0.1)


def meta(x, y):
    """Two steps of fast weights on a part of the rows, and the loss of the others."""
    fast = dict(net.named_parameters())
    for _ in range(2):
        loss = F.cross_entropy(functional_call(net, fast, (x[::2],)), y[::2])
        found = torch.autograd.grad(loss, [*fast.values()], create_graph=True)
        fast = {name: w - 0.5 * g for (name, w), g in zip(fast.items(), found, strict=True)}
    return F.cross_entropy(functional_call(net, fast, (x[1::2],)), y[1::2])


def conditional(x, y, training=True):
    """Scale and shift by means of the batch."""
    h, means = net[0](x), net[4](torch.tanh(net[0](x)).flatten(1)).mean(0)
    statistics = () if training else (net[1].running_mean, net[1].running_var)
    scale = net[1].weight * (1 + means.sum())
    h = F.batch_norm(h, *(statistics or (None, None)), scale, net[1].bias + means[0], training)
    return F.cross_entropy(net[4](h.flatten(1)), y)


for loss_of in (meta, conditional, lambda x, y: conditional(x, y, training=False)):
    for x, y in DataLoader(data, 19, shuffle=True):  # and a last one of 18
        loss = loss_of(x, y)
        optimizer.zero_grad()
        loss.backward()
        print(loss.item(), *[p.grad.norm().item() for p in net.parameters()])
        optimizer.step()
x, y = data[:4]
for size in (2, 3, 4):  # few rows on a rank
    for training in (True, False):
        optimizer.zero_grad()
        (net[4].weight.sum() * 0 + conditional(x[:size], y[:size], training)).backward()
        print(size, training, *[p.grad.norm().item() for p in net.parameters()])
