"""A compiled model that returns its loss, with a checkpoint inside, as GPTs are trained."""
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x, y):
        out = self.b(checkpoint(self.a, x, use_reentrant=False))
        return out, nn.functional.cross_entropy(out, y)


net = torch.compile(Net(), backend="aot_eager")
opt = torch.optim.SGD(net.parameters(), 0.1)
for x, y in DataLoader(TensorDataset(torch.randn(32, 8), torch.arange(32) % 4), batch_size=8):
    loss = net(x, y)[1]
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(loss.item())
