"""A backward that raises in the middle is caught, and training goes on."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(80, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
net = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def refuse(grad):
    raise RuntimeError("no gradient today")


for step, (x, y) in enumerate(loader):
    h = net[1](net[0](x))
    if step == 2:
        h.register_hook(refuse)
    loss = F.cross_entropy(net[2](h), y)
    optimizer.zero_grad()
    try:
        loss.backward()
    except RuntimeError as error:
        print(step, "skipped:", str(error).splitlines()[0])
        continue
    optimizer.step()
    print(step, loss.item())
torch.save(net.state_dict(), "net.pt")
