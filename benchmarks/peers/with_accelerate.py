"""Train a small ResNet on folders of PNG files: random crops and flips, a checkpoint each epoch."""

import argparse
import time

import torch
import torch.nn.functional as F
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
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
    workers = args.workers // ranks
    train_loader = DataLoader(
        train_set, args.batch_size, shuffle=True, num_workers=workers, drop_last=True
    )
    val_loader = DataLoader(val_set, args.batch_size, num_workers=workers)
    return train_loader, val_loader


def train_one_epoch(model, loader, optimizer, accelerator, epoch):
    model.train()
    total, count = 0.0, 0
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.item() * len(y)
        count += len(y)
        if step % 10 == 0:
            accelerator.print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
    sums = torch.tensor([total, count], device=accelerator.device)
    total, count = accelerator.reduce(sums).tolist()
    return total / count


@torch.no_grad()
def evaluate(model, loader, accelerator):
    model.eval()
    total, correct, count = 0.0, 0, 0
    for x, y in loader:
        logits, y = accelerator.gather_for_metrics((model(x), y))
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

    torch.set_default_dtype(getattr(torch, args.dtype))
    loading = DataLoaderConfiguration(split_batches=True)  # batch_size is that of all ranks
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), dataloader_config=loading)
    set_seed(0)

    train_loader, val_loader = make_loaders(args, accelerator.num_processes)
    model = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    model, optimizer, train_loader, val_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, val_loader, scheduler
    )

    history = []
    for epoch in range(args.epochs):
        start = time.perf_counter()
        train_loss = train_one_epoch(model, train_loader, optimizer, accelerator, epoch)
        seconds = time.perf_counter() - start
        val_loss, val_acc = evaluate(model, val_loader, accelerator)
        scheduler.step()
        history.append((train_loss, val_loss, val_acc))
        accelerator.print(f"epoch {epoch} train loss {train_loss:.4f} in {seconds:.2f} s")
        accelerator.print(f"epoch {epoch} val loss {val_loss:.4f} acc {val_acc:.4f}")
        checkpoint = {
            "model": accelerator.unwrap_model(model).state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "history": history,
        }
        accelerator.save(checkpoint, "checkpoint.pt")
    accelerator.end_training()


if __name__ == "__main__":
    main()
