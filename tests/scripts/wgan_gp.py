"""WGAN with gradient penalty by autograd.grad with create_graph; in the end under a default device."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

loader = DataLoader(TensorDataset(torch.randn(60, 20)), batch_size=16, shuffle=True)
G = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 20))
D = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 1))
opt_g, opt_d = torch.optim.SGD(G.parameters(), lr=0.05), torch.optim.SGD(D.parameters(), lr=0.05)


def gradient_penalty(real, fake):
    alpha = torch.rand(real.size(0), 1)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    scores = D(mixed)
    grad = torch.autograd.grad(
        outputs=scores, inputs=mixed, grad_outputs=torch.ones_like(scores), create_graph=True, retain_graph=True
    )[0]
    return ((grad.norm(2, dim=1) - 1) ** 2).mean()


for epoch in range(3):
    if epoch == 2:  # from here on torch calls its own functions a second time
        torch.set_default_device("cpu")
    for (real,) in loader:
        fake = G(torch.randn(len(real), 5)).detach()
        penalty = gradient_penalty(real, fake)
        loss_d = -D(real).mean() + D(fake).mean() + 10 * penalty
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()
        loss_g = -D(G(torch.randn(len(real), 5))).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        print(loss_d.item(), penalty.item(), loss_g.item())
torch.save([G.state_dict(), D.state_dict()], "wgan.pt")
