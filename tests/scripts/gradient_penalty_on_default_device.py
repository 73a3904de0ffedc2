"""A gradient penalty under torch.set_default_device, by which torch calls its own functions a second time."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_device("cpu")
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

critic = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(critic.parameters(), lr=0.05)
for (x,) in DataLoader(TensorDataset(torch.randn(60, 20)), batch_size=16, shuffle=True):
    x.requires_grad_(True)
    (grad,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    loss = critic(x).mean() + ((grad.norm(2, dim=1) - 1) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
torch.save(critic.state_dict(), "critic.pt")
