"""A forward that goes another way where its batch has more rows, or not an even number of them."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head, self.most = nn.Linear(6, 8), nn.Linear(8, 3), 0

    def forward(self, x):
        h = self.inner(x).tanh()
        batch, width = h.shape
        if batch > 6:
            h = h - h.mean(0)
        if len(x) % 2 == 0 and width > 4:
            pairs = h.view(batch // 2, 2, width)
            h = (pairs - pairs.mean(1, keepdim=True)).view(batch, width)
        return self.head(h)


net = Net()
optimizer = torch.optim.Adam(net.parameters(), 0.01)
for size in (7, 5, 12, 4):
    data = TensorDataset(torch.randn(22, 6), torch.randint(3, (22,)))
    for x, y in DataLoader(data, size):
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(size, len(x), loss.item())
torch.save(net.state_dict(), "net.pt")
