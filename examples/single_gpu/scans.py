"""Train a small CNN on scanned digits: PNG files, read and scaled down whenever they are needed.

    python scans.py
    python scans.py --epochs 2

The scans are scikit-learn's handwritten digits, enlarged; the first run writes them to data/scans,
nothing is downloaded. Leaves the best weights and the learning curve in runs/scans.
"""

import argparse
import os

import matplotlib
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, random_split
from torchvision import transforms
from torchvision.datasets import ImageFolder

matplotlib.use("agg")
import matplotlib.pyplot as plt

DATA, OUT = "data/scans", "runs/scans"


def write_scans(size=300):
    digits = load_digits()
    for i, pixels in enumerate(digits.images):
        folder = f"{DATA}.part/{digits.target[i]}"
        os.makedirs(folder, exist_ok=True)
        image = Image.fromarray((pixels * 15).astype("uint8")).resize((size, size), Image.BICUBIC)
        image.save(f"{folder}/{i:04}.png", compress_level=1)
    os.rename(f"{DATA}.part", DATA)


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(16 * 8 * 8, 10),
    )


def train_one_epoch(model, loader, optimizer, device):
    model.train()
    total = 0.0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(y)
    return total / len(loader.dataset)


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    total, correct = 0.0, 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        logits = model(x)
        total += F.cross_entropy(logits, y, reduction="sum").item()
        correct += (logits.argmax(1) == y).sum().item()
    return total / len(loader.dataset), correct


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)  # in float32 the order of sums shows in the digits
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if not os.path.exists(DATA):
        write_scans()
    os.makedirs(OUT, exist_ok=True)

    scale = transforms.Compose(
        [transforms.Grayscale(), transforms.Resize(32), transforms.ToTensor()]
    )
    scans = ImageFolder(DATA, scale)
    train_set, val_set = random_split(scans, [0.8, 0.2])
    train_loader = DataLoader(train_set, batch_size=64, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=64)
    print(f"{len(train_set)} training and {len(val_set)} validation scans")

    model = make_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    losses, best = [], 0
    for epoch in range(1, args.epochs + 1):
        train_loss = train_one_epoch(model, train_loader, optimizer, device)
        val_loss, correct = evaluate(model, val_loader, device)
        print(
            f"epoch {epoch}  train loss {train_loss:.6f}  "
            f"val loss {val_loss:.6f}  {correct} of {len(val_set)} right"
        )
        losses.append((train_loss, val_loss))
        if correct > best:
            best = correct
            torch.save(model.state_dict(), f"{OUT}/best.pt")
    print(f"best: {best} of {len(val_set)} right")

    plt.plot(losses, label=("train", "validation"))
    plt.xlabel("epoch")
    plt.ylabel("cross entropy")
    plt.legend()
    plt.savefig(f"{OUT}/curve.png")


if __name__ == "__main__":
    main()
