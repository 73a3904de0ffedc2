"""A GAN whose critic has spectral norm and BatchNorm, and runs twice: each forward updates buffers."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

loader = DataLoader(TensorDataset(torch.randn(60, 20)), batch_size=16, shuffle=True)
G = nn.Sequential(nn.Linear(5, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 20))
D = nn.Sequential(spectral_norm(nn.Linear(20, 16)), nn.BatchNorm1d(16), nn.LeakyReLU(0.2), spectral_norm(nn.Linear(16, 1)))
opt_g, opt_d = torch.optim.SGD(G.parameters(), lr=0.1), torch.optim.SGD(D.parameters(), lr=0.1)
for (real,) in loader:
    for _ in range(2):
        fake = G(torch.randn(len(real), 5)).detach()
        loss_d = F.relu(1 - D(real)).mean() + F.relu(1 + D(fake)).mean()
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()
    loss_g = -D(G(torch.randn(len(real), 5))).mean()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    print(loss_d.item(), loss_g.item(), D[0].parametrizations.weight[0]._u.sum().item())
torch.save({"G": G.state_dict(), "D": D.state_dict()}, "gan.pt")
