"""BatchNorm in 2d and 1d, label smoothing, an uneven last batch, evaluation in inference mode."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


def images(n):
    x = torch.randn(n, 64)
    return TensorDataset(x.view(n, 1, 8, 8), x[:, :4].argmax(1))


train = DataLoader(images(90), batch_size=16, shuffle=True)
val = DataLoader(images(37), batch_size=8)
net = nn.Sequential(
    nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
    nn.Linear(144, 6), nn.BatchNorm1d(6), nn.Linear(6, 4),
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for epoch in range(3):
    net.train()
    for x, y in train:
        loss = F.cross_entropy(net(x), y, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss:.12f}")
    net.eval()
    hits, val_loss = 0, 0.0
    with torch.inference_mode():
        for x, y in val:
            output = net(x)
            hits += (output.argmax(1) == y).sum().item()
            val_loss += F.cross_entropy(output, y, reduction="sum").item()
    print("val", hits / len(val.dataset), val_loss / len(val.dataset), net[1].running_mean.tolist())
torch.save(net.state_dict(), "net.pt")
