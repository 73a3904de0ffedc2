"""torchdata's StatefulDataLoader: an epoch is left in its middle, and taken up there."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x = torch.randn(57, 20)
data = TensorDataset(x, x[:, :4].argmax(1))
net = nn.Linear(20, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)


def loader():
    return StatefulDataLoader(data, batch_size=10, shuffle=True, num_workers=0)


def train(batches, most):
    for step, (x, y) in enumerate(batches, 1):
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, len(x), loss.item(), x.sum().item())
        if step == most:
            break


first = loader()
train(first, 3)
torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "loader": first.state_dict()}, "half.pt")
kept = torch.load("half.pt", map_location="cpu", weights_only=False)
net.load_state_dict(kept["net"])
second = loader()
second.load_state_dict(kept["loader"])
print(len(second))
train(second, 9)
train(second, 9)
torch.save(net.state_dict(), "net.pt")
