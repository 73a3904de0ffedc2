"""Models that draw around what they compute, with and without gradients; empty memory is filled, as on some devices."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.use_deterministic_algorithms(True)
torch.manual_seed(0)
draws = {
    "one spread": lambda y: torch.normal(y, 0.1),
    "spreads": lambda y: torch.normal(y, y.abs()),
    "one mean": lambda y: torch.normal(0.5, y.abs()),
    "spreads for all rows": lambda y: torch.normal(y, torch.arange(3.0)),
    "neither": lambda y: y + torch.normal(0.0, 1.0, y.shape),
    "chances": lambda y: torch.bernoulli(y.sigmoid()),
    "a distribution": lambda y: torch.distributions.Normal(y, 1.0, validate_args=False).rsample(),
    "counts": lambda y: torch.poisson(y.exp()),
}


class Noisy(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.body, self.draw, self.head = nn.Linear(6, 3), draw, nn.Linear(3, 1)

    def forward(self, x):
        return self.head(self.draw(self.body(x)))


loader = DataLoader(TensorDataset(torch.randn(41, 6)), 17)
for name, draw in draws.items():
    net = Noisy(draw)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for (x,) in loader:
        loss = net(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(name, loss.item(), torch.rand(()).item())
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            print(name, [net(x).sum().item() for (x,) in loader], torch.rand(()).item())
    torch.save(net.state_dict(), f"{name}.pt")
