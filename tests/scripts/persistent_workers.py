"""Two worker processes that live for several epochs, prefetching, with the batch order printed."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Squares(Dataset):
    def __init__(self):
        self.x = torch.randn(53, 20)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return i, self.x[i] ** 2, self.x[i, :4].argmax()


loader = DataLoader(Squares(), batch_size=8, shuffle=True, num_workers=2, persistent_workers=True, prefetch_factor=3)
net = nn.Linear(20, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for epoch in range(3):
    for i, x, y in loader:
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item(), i.tolist())
torch.save(net.state_dict(), "net.pt")
