"""Scripted functions of parameters, and of what is computed from them."""
import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


@torch.jit.script
def fused(x: torch.Tensor, bias: torch.Tensor):
    y = x + bias
    return y * 0.5 * (1.0 + torch.erf(y / 1.41421))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(8, 8, bias=False), nn.Linear(8, 3)
        self.bias, self.scale = nn.Parameter(torch.randn(8)), nn.Parameter(torch.ones(8))

    def forward(self, x):
        return self.leave(fused(fused(self.enter(x), self.bias), bias=self.bias * self.scale))


net = Net().to("cpu")
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
x = torch.randn(7, 8)
for _ in range(4):
    loss = net(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    print(loss.item(), [p.grad.sum().item() for p in net.parameters()])
    optimizer.step()
with torch.no_grad():
    print(fused(net.enter.weight, net.bias).sum().item())
