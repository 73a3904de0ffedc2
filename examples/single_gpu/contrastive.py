"""Learn features of handwritten digits without labels (SimCLR), then test them with a linear probe.

    python contrastive.py
    python contrastive.py --epochs 5 --out runs/contrastive

The loss (InfoNCE) compares every image with every other of its batch.
"""

import argparse
import os

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
except ImportError:
    plt = None  # no picture then

SEED = 42
BATCH_SIZE = 256
TEMPERATURE = 0.2
FEATURES = 64


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 16, FEATURES),
        )
        self.projection = nn.Sequential(nn.ReLU(), nn.Linear(FEATURES, 32))

    def forward(self, x):
        return self.projection(self.backbone(x))


def augment(x):
    """Shift each image by up to a pixel, change its contrast, add noise."""
    shift = torch.randint(-1, 2, (x.size(0), 2), device=x.device).float() / 4
    theta = torch.eye(2, 3, device=x.device).repeat(x.size(0), 1, 1)
    theta[:, :, 2] = shift
    grid = F.affine_grid(theta, x.shape, align_corners=False)
    x = F.grid_sample(x, grid, align_corners=False)
    contrast = 0.6 + 0.8 * torch.rand(x.size(0), 1, 1, 1, device=x.device)
    return x * contrast + 0.1 * torch.randn_like(x)


def info_nce(a, b):
    z = F.normalize(torch.cat([a, b]), dim=1)
    similarity = z @ z.T / TEMPERATURE
    n = a.size(0)
    mask = torch.eye(2 * n, dtype=torch.bool, device=z.device)
    similarity = similarity.masked_fill(mask, float("-inf"))
    target = torch.cat([torch.arange(n, 2 * n), torch.arange(n)]).to(z.device)
    return F.cross_entropy(similarity, target), (similarity.argmax(1) == target).float().mean()


@torch.no_grad()
def linear_probe(model, images, labels, n_train=1200):
    model.eval()
    features = model.backbone(images).cpu().numpy()
    model.train()
    probe = LogisticRegression(max_iter=1000).fit(features[:n_train], labels[:n_train])
    return probe.score(features[n_train:], labels[n_train:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", default="runs/contrastive")
    args = parser.parse_args()

    torch.manual_seed(SEED)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    os.makedirs(args.out, exist_ok=True)

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1).to(device) / 16
    loader = DataLoader(TensorDataset(images.cpu()), batch_size=BATCH_SIZE, shuffle=True)

    model = Encoder().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    print(f"before training: probe accuracy {linear_probe(model, images, digits.target):.4f}")

    curve = []
    for epoch in range(1, args.epochs + 1):
        total, hits = 0.0, 0.0
        for (x,) in loader:
            x = x.to(device)
            loss, top1 = info_nce(model(augment(x)), model(augment(x)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            hits += top1.item()
        curve.append(total / len(loader))
        print(f"epoch {epoch:2d}  loss {curve[-1]:.4f}  pairs found {hits / len(loader):.4f}")

    print(f"after training: probe accuracy {linear_probe(model, images, digits.target):.4f}")
    torch.save(model.backbone.state_dict(), os.path.join(args.out, "backbone.pt"))
    if plt is not None:
        plt.plot(curve)
        plt.xlabel("epoch")
        plt.ylabel("InfoNCE")
        plt.savefig(os.path.join(args.out, "curve.png"))


if __name__ == "__main__":
    main()
