"""LBFGS with a line search calls its closure as often as it likes; full batch, in one tensor."""
import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(40, 6)
y = x @ torch.randn(6, 2)
net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
optimizer = torch.optim.LBFGS(net.parameters(), max_iter=6, line_search_fn="strong_wolfe")
calls = 0


def closure():
    global calls
    calls += 1
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(net(x), y)
    loss.backward()
    return loss


for step in range(4):
    loss = optimizer.step(closure)
    print(step, loss.item(), calls)
torch.save(net.state_dict(), "net.pt")
