"""Train a small ResNet on folders of PNG files: random crops and flips, a checkpoint each epoch."""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.models.resnet import BasicBlock, ResNet


def make_loaders(args):
    augment = transforms.Compose(
        [transforms.RandomCrop(64), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    )
    center = transforms.Compose([transforms.CenterCrop(64), transforms.ToTensor()])
    train_set = ImageFolder(f"{args.data}/train", augment)
    val_set = ImageFolder(f"{args.data}/val", center)
    train_loader = DataLoader(
        train_set, args.batch_size, shuffle=True, num_workers=args.workers, drop_last=True
    )
    val_loader = DataLoader(val_set, args.batch_size, num_workers=args.workers)
    return train_loader, val_loader


def train_one_epoch(model, loader, optimizer, device, epoch):
    model.train()
    total, count = 0.0, 0
    for step, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.item() * len(y)
        count += len(y)
        if step % 10 == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
    return total / count


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    total, correct, count = 0.0, 0, 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        logits = model(x)
        total += F.cross_entropy(logits, y, reduction="sum").item()
        correct += (logits.argmax(1) == y).sum().item()
        count += len(y)
    return total / count, correct / count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_default_dtype(getattr(torch, args.dtype))
    device = "cuda" if torch.cuda.is_available() else "cpu"

    train_loader, val_loader = make_loaders(args)
    model = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)

    history = []
    for epoch in range(args.epochs):
        start = time.perf_counter()
        train_loss = train_one_epoch(model, train_loader, optimizer, device, epoch)
        seconds = time.perf_counter() - start
        val_loss, val_acc = evaluate(model, val_loader, device)
        scheduler.step()
        history.append((train_loss, val_loss, val_acc))
        print(f"epoch {epoch} train loss {train_loss:.4f} in {seconds:.2f} s")
        print(f"epoch {epoch} val loss {val_loss:.4f} acc {val_acc:.4f}")
        checkpoint = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "history": history,
        }
        torch.save(checkpoint, "checkpoint.pt")


if __name__ == "__main__":
    main()
