"""Tensors that are computed from parameters and written into: as a whole, by index, through views."""
import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 9)).to("cpu")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.randn(6, 9)


def masked(weight):
    made = weight.clone()
    made[1] = 0
    return made


def through_view(weight):
    made = weight * 2
    made[2:5].zero_()
    return made


def through_columns(weight):
    made = weight.clone().mul_(3)
    made[:, 2:4].mul_(0.5)
    made.t()[0] += 1
    return made


def filled(weight):
    made = weight.clone()
    made.fill_diagonal_(0.25)
    return made.tanh_()


def retained(weight):
    made = weight * 3
    made.retain_grad()
    made[0, :2] = 0
    made.register_hook(lambda gradient: print("hook", gradient.sum().item()))
    return made


for change in (masked, through_view, through_columns, filled, retained):
    weight = change(net[0].weight)
    bias = net[0].bias.clone()
    bias[2:4].zero_()  # as torchvision's Swin has it
    loss = net[2](torch.tanh(x @ weight.t() + bias)).square().mean() + (weight * weight).sum() / 9
    optimizer.zero_grad()
    loss.backward()
    gradients = [p.grad.sum(-1).tolist() for p in net.parameters()]
    print(change.__name__, loss.item(), weight.sum().item(), gradients)
    optimizer.step()
print(net[0].weight.tolist())
