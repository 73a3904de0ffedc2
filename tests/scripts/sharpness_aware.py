"""SAM: an optimizer that wraps another, climbs, and steps from there; two backwards per batch."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base = base(self.param_groups, **kwargs)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self):
        grads = [p.grad.norm(p=2) for group in self.param_groups for p in group["params"]]
        norm = torch.norm(torch.stack(grads), p=2)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.data.clone()
                p.add_(p.grad * (group["rho"] / (norm + 1e-12)))
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure):
        closure = torch.enable_grad()(closure)
        self.first_step()
        loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old"]
        self.base.step()
        self.zero_grad()
        return loss


x = torch.randn(61, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
net = nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
optimizer = SAM(net.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)


def closure(x, y):
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    return loss


for x, y in loader:
    first = closure(x, y)
    second = optimizer.step(lambda: closure(x, y))
    print(first.item(), second.item())
torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, "net.pt")
