"""Train a small CNN on scikit-learn's handwritten digits, to 98 % and more on the validation set.

    python digits.py
    python digits.py --epochs 5 --lr 1e-3 --out runs/digits-short

Needs no download and takes less than a minute on two CPU cores. Leaves the best weights, a log and
the learning curve in runs/digits.
"""

import argparse
import csv
import os

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

try:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
except ImportError:
    plt = None  # no picture then

SEED = 1337
BATCH_SIZE = 64
VAL_FRACTION = 0.2
DROPOUT = 0.25
WEIGHT_DECAY = 1e-4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Dropout(DROPOUT),
            nn.Linear(64 * 4 * 4, 128),
            nn.ReLU(),
            nn.Dropout(DROPOUT),
            nn.Linear(128, 10),
        )

    def forward(self, x):
        return self.classifier(self.features(x))


def load_data():
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    dataset = TensorDataset(images, torch.tensor(digits.target))
    n_val = int(len(dataset) * VAL_FRACTION)
    return random_split(dataset, [len(dataset) - n_val, n_val])


def train_one_epoch(model, loader, optimizer, device):
    model.train()
    total, correct = 0.0, 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.item() * x.size(0)
        correct += (logits.argmax(dim=1) == y).sum().item()
    return total / len(loader.dataset), correct / len(loader.dataset)


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    total, correct = 0.0, 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        logits = model(x)
        total += F.cross_entropy(logits, y, reduction="sum").item()
        correct += (logits.argmax(dim=1) == y).sum().item()
    return total / len(loader.dataset), correct / len(loader.dataset)


def plot(history, path):
    epochs = [row["epoch"] for row in history]
    plt.plot(epochs, [row["train_loss"] for row in history], label="train")
    plt.plot(epochs, [row["val_loss"] for row in history], label="validation")
    plt.xlabel("epoch")
    plt.ylabel("cross entropy")
    plt.legend()
    plt.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--out", default="runs/digits")
    args = parser.parse_args()

    torch.manual_seed(SEED)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    os.makedirs(args.out, exist_ok=True)
    best_path = os.path.join(args.out, "best.pt")

    train_set, val_set = load_data()
    train_loader = DataLoader(train_set, batch_size=BATCH_SIZE, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=256)
    print(f"{len(train_set)} training and {len(val_set)} validation images")

    model = Net().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=WEIGHT_DECAY)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)

    history, best = [], 0.0
    for epoch in range(1, args.epochs + 1):
        train_loss, train_acc = train_one_epoch(model, train_loader, optimizer, device)
        val_loss, val_acc = evaluate(model, val_loader, device)
        lr = scheduler.get_last_lr()[0]
        scheduler.step()
        print(
            f"epoch {epoch:2d}  lr {lr:.5f}  train loss {train_loss:.4f} acc {train_acc:.4f}  "
            f"val loss {val_loss:.4f} acc {val_acc:.4f}"
        )
        history.append({"epoch": epoch, "train_loss": train_loss, "val_loss": val_loss})
        if val_acc > best:
            best = val_acc
            torch.save({"model": model.state_dict(), "epoch": epoch, "acc": val_acc}, best_path)

    with open(os.path.join(args.out, "log.csv"), "w", newline="") as f:
        writer = csv.DictWriter(f, history[0])
        writer.writeheader()
        writer.writerows(history)
    if plt is not None:
        plot(history, os.path.join(args.out, "curve.png"))

    checkpoint = torch.load(best_path, map_location=device)
    model.load_state_dict(checkpoint["model"])
    loss, acc = evaluate(model, val_loader, device)
    print(f"best epoch {checkpoint['epoch']}: val loss {loss:.4f} acc {acc:.4f}")


if __name__ == "__main__":
    main()
