"""DCGAN's loop: two optimizers, D.zero_grad(), detach, means of D's output printed."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

loader = DataLoader(TensorDataset(torch.randn(64, 20)), batch_size=16, shuffle=True)
G = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 20))
D = nn.Sequential(nn.Linear(20, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1), nn.Sigmoid())
optimizer_g = torch.optim.Adam(G.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizer_d = torch.optim.Adam(D.parameters(), lr=2e-3, betas=(0.5, 0.999))
criterion = nn.BCELoss()
fixed_noise = torch.randn(6, 5)
for epoch in range(3):
    for (real,) in loader:
        b = real.size(0)
        D.zero_grad()
        label = torch.full((b, 1), 1.0)
        output = D(real)
        loss_real = criterion(output, label)
        loss_real.backward()
        d_x = output.mean().item()
        fake = G(torch.randn(b, 5))
        label.fill_(0.0)
        output = D(fake.detach())
        loss_fake = criterion(output, label)
        loss_fake.backward()
        d_g_z1 = output.mean().item()
        optimizer_d.step()
        G.zero_grad()
        label.fill_(1.0)
        output = D(fake)
        loss_g = criterion(output, label)
        loss_g.backward()
        optimizer_g.step()
        print((loss_real + loss_fake).item(), loss_g.item(), d_x, d_g_z1, output.mean().item())
    with torch.no_grad():
        print(G(fixed_noise).sum().item())
torch.save({"G": G.state_dict(), "D": D.state_dict()}, "gan.pt")
