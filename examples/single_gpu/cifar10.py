"""Train an image classifier on CIFAR10, which is downloaded when it is not there yet.

python cifar10.py
python cifar10.py --epochs 1 --batch-size 64 --workers 4
"""

import argparse
import os

import torch
import torch.nn.functional as F
import torchvision
from torch import nn, optim
from torchvision import transforms

try:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
except ImportError:
    plt = None  # no picture then

CLASSES = ("plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


def test(net, testloader, device):
    correct_pred = dict.fromkeys(CLASSES, 0)
    total_pred = dict.fromkeys(CLASSES, 0)
    with torch.no_grad():
        for images, labels in testloader:
            outputs = net(images.to(device))
            _, predictions = torch.max(outputs, 1)
            for label, prediction in zip(labels, predictions, strict=True):
                if label == prediction:
                    correct_pred[CLASSES[label]] += 1
                total_pred[CLASSES[label]] += 1
    accuracy = 100 * sum(correct_pred.values()) / sum(total_pred.values())
    print(f"Accuracy of the network on the {len(testloader.dataset)} test images: {accuracy:.1f} %")
    for classname, correct_count in correct_pred.items():
        accuracy = 100 * correct_count / max(1, total_pred[classname])
        print(f"Accuracy for class: {classname:5s} is {accuracy:.1f} %")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--print-every", type=int, default=100)
    parser.add_argument("--data", default="data")
    parser.add_argument("--out", default="runs/cifar10")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    transform = transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))]
    )
    trainset = torchvision.datasets.CIFAR10(
        root=args.data, train=True, download=True, transform=transform
    )
    trainloader = torch.utils.data.DataLoader(
        trainset, batch_size=args.batch_size, shuffle=True, num_workers=args.workers
    )
    testset = torchvision.datasets.CIFAR10(
        root=args.data, train=False, download=True, transform=transform
    )
    testloader = torch.utils.data.DataLoader(
        testset, batch_size=args.batch_size, shuffle=False, num_workers=args.workers
    )

    net = Net().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)

    curve = []
    for epoch in range(args.epochs):
        running_loss = 0.0
        for i, data in enumerate(trainloader, 0):
            inputs, labels = data[0].to(device), data[1].to(device)
            optimizer.zero_grad()
            outputs = net(inputs)
            loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
            if i % args.print_every == args.print_every - 1:
                print(f"[{epoch + 1}, {i + 1:5d}] loss: {running_loss / args.print_every:.3f}")
                curve.append(running_loss / args.print_every)
                running_loss = 0.0
    print("Finished Training")

    os.makedirs(args.out, exist_ok=True)
    path = os.path.join(args.out, "cifar_net.pth")
    torch.save(net.state_dict(), path)
    net = Net().to(device)
    net.load_state_dict(torch.load(path, weights_only=True))

    test(net, testloader, device)

    if plt is not None:
        plt.plot(curve)
        plt.xlabel(f"batches / {args.print_every}")
        plt.ylabel("loss")
        plt.savefig(os.path.join(args.out, "curve.png"))


if __name__ == "__main__":
    main()
