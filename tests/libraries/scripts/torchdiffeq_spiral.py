"""torchdiffeq: learn the field of a spiral from parts of its path, by the adjoint method."""

import torch
from torch import nn
from torchdiffeq import odeint, odeint_adjoint
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
y0 = torch.tensor([[2.0, 0.0]])
t = torch.linspace(0.0, 6.0, 120)
matrix = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])


class Spiral(nn.Module):
    def forward(self, t, y):
        return (y**3) @ matrix


with torch.no_grad():
    path = odeint(Spiral(), y0, t, method="dopri5")[:, 0]


class Parts(Dataset):
    def __len__(self):
        return 108

    def __getitem__(self, i):
        return path[i], path[i : i + 10]


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
        self.calls = 0

    def forward(self, t, y):
        self.calls += 1
        return self.net(y**3)


func = Field()
optimizer = torch.optim.RMSprop(func.parameters(), lr=1e-3)
solvers = (odeint_adjoint, "dopri5"), (odeint, "rk4")
for epoch, (solve, method) in enumerate(solvers):
    for start, target in DataLoader(Parts(), batch_size=20, shuffle=True):
        optimizer.zero_grad()
        guess = solve(func, start, t[:10], method=method)
        loss = (guess - target.transpose(0, 1)).abs().mean()
        loss.backward()
        optimizer.step()
        print(f"{epoch} {method} loss {loss.item():.10f} after {func.calls} calls")
    with torch.no_grad():
        total = (odeint(func, y0, t)[:, 0] - path).abs().mean()
    print(f"total loss {total.item():.10f}")
torch.save(func.state_dict(), "field.pt")
