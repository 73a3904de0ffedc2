"""A VAE that draws its noise and its dropout mask in forward."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(20, 16), nn.Linear(3, 20)
        self.mu, self.logvar = nn.Linear(16, 3), nn.Linear(16, 3)
        self.dropout = nn.Dropout(0.1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def forward(self, x):
        h = self.dropout(F.relu(self.encoder(x)))
        mu, logvar = self.mu(h), self.logvar(h)
        return torch.sigmoid(self.decoder(self.reparameterize(mu, logvar))), mu, logvar


loader = DataLoader(TensorDataset(torch.rand(70, 20)), batch_size=16, shuffle=True)
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for (x,) in loader:
    recon, mu, logvar = model(x)
    bce = F.binary_cross_entropy(recon, x, reduction="sum")
    loss = bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item() / len(x), mu.abs().mean().item())
torch.save(model.state_dict(), "vae.pt")
