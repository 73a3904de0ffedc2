"""Operators that a mode counts, and modules that hooks for all modules see, are those of the batch."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
data = TensorDataset(torch.randn(22, 6), torch.randint(3, (22,)))


class Products(TorchDispatchMode):
    """The shapes of all products."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if "mm" in func.__name__:
            print(func, tuple(out.shape))
        return out


def step(x, y):
    loss = F.cross_entropy(net(x), y) + (x @ x.T).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())


def tell(m, given, out):
    print(type(m).__name__, [tuple(x.shape) for x in (*given, out)])


for x, y in DataLoader(data, 7):
    step(x, y)
    with FlopCounterMode(display=False) as flops:
        step(x, y)
    print(flops.get_total_flops())
    with Products():
        step(x, y)
    loss = F.cross_entropy(net(x), y)
    with FlopCounterMode(display=False) as flops:
        loss.backward()
        x.requires_grad_()
        net(x).pow(2).mean().backward()
    print(x.grad.sum().item(), x.grad.shape, x.requires_grad, flops.get_total_flops() > 0, net[0].weight.grad.sum().item())
    handles = [
        module.register_module_forward_hook(tell),
        module.register_module_forward_pre_hook(lambda m, given: print(type(m).__name__)),
        module.register_module_full_backward_hook(lambda m, i, o: print(tuple(o[0].shape))),
    ]
    step(x.detach(), y)
    for handle in handles:
        handle.remove()
torch.save(net.state_dict(), "net.pt")
