"""A deep equilibrium layer, whose hook asks for gradients inside the backward."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Equilibrium(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(6, 6), nn.Linear(6, 3)
        nn.init.uniform_(self.inner.weight, -0.1, 0.1)

    def step(self, z, x):
        return torch.tanh(self.inner(z) + x)

    def forward(self, x):
        with torch.no_grad():
            z = torch.zeros_like(x)
            for _ in range(20):
                z = self.step(z, x)
        z = self.step(z, x)
        z0 = z.clone().detach().requires_grad_()
        f0 = self.step(z0, x)

        def hook(grad):
            v = grad
            for _ in range(10):
                v = torch.autograd.grad(f0, z0, v, retain_graph=True)[0] + grad
            return v

        z.register_hook(hook)
        return self.out(z)


model = Equilibrium()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in DataLoader(TensorDataset(torch.randn(17, 6), torch.arange(17) % 3), batch_size=6):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), model.inner.weight.grad.abs().sum().item())
