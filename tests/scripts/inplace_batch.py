"""The batch is changed in place: masked rows, scaled, noise added, targets overwritten."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(60, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
net = nn.Linear(20, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
for x, y in loader:
    x.mul_(2).sub_(0.1)
    x[0] = 0
    x[:, 3] = 1.0
    x[x > 3] = 3
    x += 0.01 * torch.randn_like(x)
    x.clamp_(-3, 3)
    y[1:3] = 0
    half = x[: len(x) // 2]
    half *= 0.5
    output = net(x)
    loss = F.cross_entropy(output, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    output.data.zero_()
    print(loss.item(), x.sum().item(), half.sum().item(), y[:4].tolist(), output.sum().item())
torch.save(net.state_dict(), "net.pt")
