"""Stochastic weight averaging with its own learning rate; BatchNorm's statistics are updated after."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(60, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
net = nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
swa_net, swa_scheduler = AveragedModel(net), SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
for epoch in range(4):
    for x, y in loader:
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch >= 1:
        swa_net.update_parameters(net)
        swa_scheduler.step()
    print(epoch, loss.item(), optimizer.param_groups[0]["lr"])
update_bn(loader, swa_net)
swa_net.eval()
with torch.no_grad():
    print(sum(F.cross_entropy(swa_net(x), y, reduction="sum").item() for x, y in loader) / 60)
torch.save({"net": net.state_dict(), "swa": swa_net.state_dict()}, "both.pt")
