"""forward decides by how many elements a mask picks, and by the first row that a sort brings up."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Picking(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        h = self.a(x)
        picked = h[h > 0.5]
        if len(picked) > 20:
            h = h * 2
        if (h.abs() > 2.2).nonzero().size(0) >= 2:
            h = h.clamp(-2.2, 2.2)
        order = h[:, 0].argsort(descending=True)
        if int(order[0]) > len(x) // 2:
            h = h - h[order[0]].detach()
        return self.b(F.relu(h))


x, y = torch.randn(100, 6), torch.randint(3, (100,))
net = Picking()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for a, b in DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True):
    optimizer.zero_grad()
    loss = F.cross_entropy(net(a), b)
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.12f}")
print(f"{sum(p.abs().sum().item() for p in net.parameters()):.12f}")
torch.save(net.state_dict(), "net.pt")
