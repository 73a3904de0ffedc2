"""Batches that are given other memory by `x.data = new`, before and after views of them were taken."""
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x, y = torch.randn(7, 4), torch.randint(3, (7,))
net = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def total(*tensors):
    print(*(t.sum().item() for t in tensors))


for a, t in DataLoader(TensorDataset(x, y), 7):
    d = torch.zeros_like(a) + 0.01
    d.requires_grad = True
    for _ in range(3):  # free adversarial training
        optimizer.zero_grad()
        F.cross_entropy(net(a + d[: len(a)]), t).backward()
        d.data = d.data + 0.05 * d.grad.detach().sign()
        d.data.clamp_(-0.1, 0.1)
        d.grad.zero_()
        optimizer.step()
        total(d.abs(), *net.parameters())

    b = a.clone()  # a view goes its own way
    view, flat = b[:2], b.view(-1)
    b.data = torch.zeros_like(b)
    b.data.add_(1)
    view.add_(1)
    total(b, view, flat)

    b, c = a.clone(), a + 1  # two batches of one memory
    b.data = c
    c.add_(1)
    b.mul_(2)
    c[0].zero_()
    total(b, c, b[0])

    b, c = a.clone(), torch.ones(7, 4)  # a batch and a tensor of one memory
    b.data = c
    c.add_(1)
    total(b)
    b.add_(1)
    total(b, c)

    b = a.clone()  # an array of the old memory
    array = b.numpy()
    b.data = b * 0
    array[:] = 5
    total(b, array)
    b.add_(1)
    total(b, array, b[1:])
    array = b.numpy()
    b.data = b.data * 2
    total(b, array, b[1:])
torch.save(net.state_dict(), "net.pt")
