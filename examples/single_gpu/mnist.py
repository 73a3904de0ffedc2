"""Train a small CNN on MNIST, which is downloaded when it is not there yet.

python mnist.py
python mnist.py --epochs 1 --batch-size 128 --save-model
"""

import argparse
import os

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torchvision import datasets, transforms

try:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
except ImportError:
    plt = None  # no picture then


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3)
        self.conv2 = nn.Conv2d(16, 32, 3)
        self.dropout1 = nn.Dropout2d(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(32 * 12 * 12, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(x, 2)
        x = self.dropout1(x)
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = self.dropout2(x)
        return F.log_softmax(self.fc2(x), dim=1)


def train(args, model, loader, optimizer, epoch):
    device = next(model.parameters()).device
    losses = []
    model.train()
    for batch_idx, (data, target) in enumerate(loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            seen = batch_idx * len(data)
            done = 100.0 * batch_idx / len(loader)
            print(
                f"Train Epoch: {epoch} [{seen}/{len(loader.dataset)} ({done:.0f}%)]"
                f"\tLoss: {loss.item():.6f}"
            )
            losses.append(loss.item())
    return losses


def test(model, device, test_loader):
    model.eval()
    test_loss, correct = 0, 0
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            pred = output.argmax(dim=1, keepdim=True)
            correct += pred.eq(target.view_as(pred)).sum().item()
    n = len(test_loader.dataset)
    print(
        f"\nTest set: Average loss: {test_loss / n:.4f}, "
        f"Accuracy: {correct}/{n} ({100.0 * correct / n:.0f}%)\n"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--test-batch-size", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--gamma", type=float, default=0.7, help="learning rate decay per epoch")
    parser.add_argument("--no-cuda", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--save-model", action="store_true")
    parser.add_argument("--data", default="data")
    parser.add_argument("--out", default="runs/mnist")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    use_cuda = not args.no_cuda and torch.cuda.is_available()
    device = torch.device("cuda" if use_cuda else "cpu")
    loader_args = {"num_workers": 1, "pin_memory": True} if use_cuda else {}

    transform = transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))]
    )
    train_set = datasets.MNIST(args.data, train=True, download=True, transform=transform)
    test_set = datasets.MNIST(args.data, train=False, transform=transform)
    train_loader = torch.utils.data.DataLoader(
        train_set, batch_size=args.batch_size, shuffle=True, **loader_args
    )
    test_loader = torch.utils.data.DataLoader(
        test_set, batch_size=args.test_batch_size, **loader_args
    )

    model = Net().to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    curve = []
    for epoch in range(1, args.epochs + 1):
        curve += train(args, model, train_loader, optimizer, epoch)
        test(model, device, test_loader)
        scheduler.step()

    os.makedirs(args.out, exist_ok=True)
    if args.save_model:
        torch.save(model.state_dict(), os.path.join(args.out, "mnist_cnn.pt"))
    if plt is not None:
        plt.plot(curve)
        plt.xlabel(f"batches / {args.log_interval}")
        plt.ylabel("loss")
        plt.savefig(os.path.join(args.out, "curve.png"))


if __name__ == "__main__":
    main()
