"""Train a small ResNet on folders of PNG files: random crops and flips, a checkpoint each epoch."""

import argparse
import time

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.models.resnet import BasicBlock, ResNet


def make_loaders(args, ranks):
    augment = transforms.Compose(
        [transforms.RandomCrop(64), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    )
    center = transforms.Compose([transforms.CenterCrop(64), transforms.ToTensor()])
    train_set = ImageFolder(f"{args.data}/train", augment)
    val_set = ImageFolder(f"{args.data}/val", center)
    batch_size, workers = args.batch_size // ranks, args.workers // ranks
    train_loader = DataLoader(
        train_set, batch_size, shuffle=True, num_workers=workers, drop_last=True
    )
    val_loader = DataLoader(val_set, batch_size, num_workers=workers)
    return train_loader, val_loader


def train_one_epoch(fabric, model, loader, optimizer, epoch):
    model.train()
    total, count = 0.0, 0
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        total += loss.item() * len(y)
        count += len(y)
        if step % 10 == 0:
            fabric.print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
    total, count = fabric.all_reduce(torch.tensor([total, count]), reduce_op="sum").tolist()
    return total / count


@torch.no_grad()
def evaluate(fabric, model, loader):
    model.eval()
    total, correct, count = 0.0, 0, 0
    for x, y in loader:
        logits = model(x)
        total += F.cross_entropy(logits, y, reduction="sum").item()
        correct += (logits.argmax(1) == y).sum().item()
        count += len(y)
    sums = fabric.all_reduce(torch.tensor([total, correct, count]), reduce_op="sum")
    total, correct, count = sums.tolist()
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

    torch.set_default_dtype(getattr(torch, args.dtype))
    fabric = Fabric()
    fabric.seed_everything(0)

    train_loader, val_loader = fabric.setup_dataloaders(*make_loaders(args, fabric.world_size))
    model = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    model, optimizer = fabric.setup(model, optimizer)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)

    history = []
    for epoch in range(args.epochs):
        start = time.perf_counter()
        train_loss = train_one_epoch(fabric, model, train_loader, optimizer, epoch)
        seconds = time.perf_counter() - start
        val_loss, val_acc = evaluate(fabric, model, val_loader)
        scheduler.step()
        history.append((train_loss, val_loss, val_acc))
        fabric.print(f"epoch {epoch} train loss {train_loss:.4f} in {seconds:.2f} s")
        fabric.print(f"epoch {epoch} val loss {val_loss:.4f} acc {val_acc:.4f}")
        checkpoint = {
            "model": model,
            "optimizer": optimizer,
            "scheduler": scheduler.state_dict(),
            "history": history,
        }
        fabric.save("checkpoint.pt", checkpoint)


if __name__ == "__main__":
    main()
