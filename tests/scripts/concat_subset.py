"""Data sets put together and cut: ConcatDataset, Subset, a transform on top."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Doubled(Dataset):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        x, y = self.data[i]
        return x * 2, y


def blobs(n):
    x = torch.randn(n, 20)
    return TensorDataset(x, x[:, :4].argmax(1))


both = ConcatDataset([blobs(40), Doubled(Subset(blobs(50), range(0, 50, 2)))])
loader = DataLoader(both, batch_size=16, shuffle=True)
print(len(both), len(loader))
net = nn.Linear(20, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
for epoch in range(2):
    for x, y in loader:
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item(), y.bincount(minlength=4).tolist())
torch.save(net.state_dict(), "net.pt")
