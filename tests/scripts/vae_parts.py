"""A VAE in loose parts: noise drawn by the script, a summed loss divided by len(dataset)."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

loader = DataLoader(TensorDataset(torch.randn(70, 20), torch.zeros(70)), batch_size=16, shuffle=True)
encoder, to_mu, to_logvar, decoder = nn.Linear(20, 16), nn.Linear(16, 3), nn.Linear(16, 3), nn.Linear(3, 20)
model = nn.ModuleList([encoder, to_mu, to_logvar, decoder])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    train_loss = 0
    for data, _ in loader:
        h = F.relu(encoder(data))
        mu, logvar = to_mu(h), to_logvar(h)
        z = mu + torch.randn_like(logvar) * torch.exp(0.5 * logvar)
        recon = torch.sigmoid(decoder(z))
        bce = F.mse_loss(recon, data, reduction="sum")
        kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        loss = bce + kld
        optimizer.zero_grad()
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
        print(loss.item() / len(data))
    print(f"====> Epoch: {epoch} Average loss: {train_loss / len(loader.dataset)!r}")
torch.save(model.state_dict(), "vae.pt")
