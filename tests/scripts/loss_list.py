"""A list of losses goes through torch.autograd.backward at once, one of them a vector with grad_tensors."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(60, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
first, second = nn.Linear(20, 4), nn.Sequential(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 1))
net = nn.ModuleList([first, second])
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    loss1 = F.cross_entropy(first(x), y)
    loss2 = F.l1_loss(second(x).squeeze(1), x.sum(1))
    torch.autograd.backward([loss1, loss2])
    each = F.cross_entropy(first(x), y, reduction="none")
    each.backward(torch.full_like(each, 0.5 / len(each)))
    optimizer.step()
    print(loss1.item(), loss2.item(), each.sum().item(), first.weight.grad.norm().item())
torch.save(net.state_dict(), "net.pt")
