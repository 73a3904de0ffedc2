"""Memory and gradients that are replaced by other tensors: what is shared stays shared."""
import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


def model():
    net = nn.Sequential(nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 7)).to("cpu")
    return net, torch.optim.SGD(net.parameters(), lr=0.1)


def train(net, optimizer):
    loss = net(torch.linspace(-1, 1, 35).view(5, 7)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def buffers():
    net, optimizer = model()
    buffer, copied, view = torch.zeros(6, 7), nn.Parameter(torch.zeros(6, 7)), torch.zeros(1)
    buffer.data = net[0].weight.data
    copied.data = net[0].weight.data.clone()
    view.data = net[0].weight.view(-1)[3:9]
    train(net, optimizer)
    buffer.mul_(1.5)
    view.add_(0.25)
    copied.data.mul_(2)
    (copied * net[0].weight).sum().backward()
    return [buffer, copied, view, copied.grad]


def gradients_in_one_tensor():
    net, optimizer = model()
    flat, start = torch.zeros(sum(p.numel() for p in net.parameters())), 0
    for p in net.parameters():
        p.grad = flat[start : start + p.numel()].view_as(p)
        start += p.numel()
    train(net, optimizer)
    return [flat]


def gradients_of_their_own():
    net, optimizer = model()
    own = torch.ones(6, 7)
    net[0].weight.grad = own
    first = train(net, optimizer)
    curved = torch.autograd.grad(net[2].weight.sin().sum(), net[2].weight, create_graph=True)[0]
    net[2].weight.grad = curved * 2
    (again,) = torch.autograd.grad(net[2].weight.grad.sum(), net[2].weight)
    made = torch.zeros_like(net[0].bias, requires_grad=True)
    (made.cos() + net[0].bias).sin().sum().backward()
    return [torch.tensor(first), own, again, made.grad, torch.tensor(net[0].weight.grad is own)]


for case in (buffers, gradients_in_one_tensor, gradients_of_their_own):
    print(case.__name__, [x.tolist() for x in case()])
