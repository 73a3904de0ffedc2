"""Views' data is written into, and what had no graph gets one by a write."""
import torch
from torch import nn

torch.set_default_dtype(torch.float64)


def pair():
    torch.manual_seed(0)
    return nn.ParameterList([nn.Parameter(torch.randn(4, 3, 2)), nn.Parameter(torch.randn(6))]).to("cpu")


def views_without_graph(a, b):
    a.view(-1).data[torch.tensor([0, -1])] = 0.5
    a[:, :1].expand(4, 3, 2).data[0, 0] = 2
    a.transpose(0, 1).detach().mul_(3)
    return a, a.data.clone()


def state(a, b):
    total = torch.zeros_like(a)
    total.add_(a.flip(0) * 2).mul_(b.sum())
    total.sin().sum().backward()
    return total, a.grad, b.grad


def view_of_state(a, b):
    kept = (total := torch.zeros_like(a)).detach()
    total.view(-1)[2:8].add_(b * 2)
    (total * total).sum().backward()
    return total, kept, b.grad


def memory_of_a_parameter(a, b):
    total = a.data
    total[0].view(-1).mul_(b)
    total.sum().backward()
    return total, a, b.grad


def frozen(a, b):
    same = a.data
    a.requires_grad_(False).view(-1)[:6].mul_(b)
    a.square().sum().backward()
    a.detach().mul_(2)
    return a, b.grad, same


def in_lists(a, b):
    made = torch.zeros_like(a)
    torch._foreach_add_([made], [a.flip(0)])
    made.mul_(a).sum().backward()
    return made, a.grad


for case in (views_without_graph, state, view_of_state, memory_of_a_parameter, frozen, in_lists):
    print(case.__name__, [(x.requires_grad, x.detach().clone().tolist()) for x in case(*pair())])
a, b = pair()
print(a.clone(), b.sum(), b.mean(), torch.zeros_like(b, requires_grad=True), sep="\n")
