"""An evaluation in the middle of an epoch, while the training loader's iterator is open."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


def blobs(n):
    x = torch.randn(n, 20)
    return TensorDataset(x, x[:, :4].argmax(1))


train, val = DataLoader(blobs(70), batch_size=12, shuffle=True), DataLoader(blobs(25), batch_size=10)
net = nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


@torch.no_grad()
def evaluate():
    net.eval()
    losses = [F.cross_entropy(net(x), y, reduction="none") for x, y in val]
    net.train()
    return torch.cat(losses).mean().item()


for step, (x, y) in enumerate(train):
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 2 == 0:
        print(step, loss.item(), evaluate(), net.training)
torch.save(net.state_dict(), "net.pt")
