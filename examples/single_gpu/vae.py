"""Train a variational autoencoder on scikit-learn's handwritten digits, and draw new ones.

python vae.py
python vae.py --epochs 5 --out runs/vae
"""

import argparse
import os

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from torchvision.utils import save_image

try:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
except ImportError:
    plt = None  # no picture then

SEED = 1
BATCH_SIZE = 128
LATENT = 8


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 128)
        self.fc21 = nn.Linear(128, LATENT)
        self.fc22 = nn.Linear(128, LATENT)
        self.fc3 = nn.Linear(LATENT, 128)
        self.fc4 = nn.Linear(128, 64)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def decode(self, z):
        h3 = F.relu(self.fc3(z))
        return torch.sigmoid(self.fc4(h3))

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 64))
        z = self.reparameterize(mu, logvar)
        return self.decode(z), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    """Reconstruction and KL divergence, summed over all elements and the batch."""
    bce = F.binary_cross_entropy(recon_x, x.view(-1, 64), reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return bce + kld


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--out", default="runs/vae")
    args = parser.parse_args()

    torch.manual_seed(SEED)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    os.makedirs(args.out, exist_ok=True)

    images = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 16
    train_loader = DataLoader(TensorDataset(images[:1500]), batch_size=BATCH_SIZE, shuffle=True)
    test_loader = DataLoader(TensorDataset(images[1500:]), batch_size=BATCH_SIZE)

    model = VAE().to(device)
    optimizer = optim.Adam(model.parameters(), lr=1e-3)

    curve = []
    for epoch in range(1, args.epochs + 1):
        model.train()
        train_loss = 0
        for (data,) in train_loader:
            data = data.to(device)
            optimizer.zero_grad()
            recon_batch, mu, logvar = model(data)
            loss = loss_function(recon_batch, data, mu, logvar)
            loss.backward()
            train_loss += loss.item()
            optimizer.step()

        model.eval()
        test_loss = 0
        with torch.no_grad():
            for i, (data,) in enumerate(test_loader):
                data = data.to(device)
                recon_batch, mu, logvar = model(data)
                test_loss += loss_function(recon_batch, data, mu, logvar).item()
                if i == 0 and epoch == args.epochs:
                    both = torch.cat([data[:8], recon_batch.view(-1, 1, 8, 8)[:8]])
                    save_image(both.cpu(), os.path.join(args.out, "reconstruction.png"), nrow=8)
        train_loss /= len(train_loader.dataset)
        test_loss /= len(test_loader.dataset)
        curve.append((train_loss, test_loss))
        print(f"====> Epoch: {epoch} train loss: {train_loss:.4f} test loss: {test_loss:.4f}")

    with torch.no_grad():
        sample = model.decode(torch.randn(64, LATENT, device=device)).cpu()
    save_image(sample.view(64, 1, 8, 8), os.path.join(args.out, "sample.png"))
    torch.save(model.state_dict(), os.path.join(args.out, "vae.pt"))
    if plt is not None:
        plt.plot(curve, label=["train", "test"])
        plt.xlabel("epoch")
        plt.ylabel("loss per image")
        plt.legend()
        plt.savefig(os.path.join(args.out, "curve.png"))


if __name__ == "__main__":
    main()
