"""F.l1_loss with a weight for each element, which torch does not hand on to other classes of tensors."""
import inspect

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(60, 20)
loader = DataLoader(TensorDataset(x, x[:, :4] ** 2), batch_size=16, shuffle=True)
net = nn.Sequential(nn.Linear(20, 8), nn.Tanh(), nn.Linear(8, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
takes = "weight" in inspect.signature(F.l1_loss).parameters  # torch 2.6 does not
for x, y in loader:
    optimizer.zero_grad()
    out = net(x)
    given = {"weight": y.detach() + 1} if takes else {}
    loss = F.l1_loss(out, y, **given) + F.l1_loss(out, y, reduction="none", **given)[0].sum()
    loss.backward()
    optimizer.step()
    print(loss.item(), net[0].weight.grad.norm().item())
    if takes:
        print(F.l1_loss(out, y, None, None, "sum", y.detach()).item())
torch.save(net.state_dict(), "net.pt")
