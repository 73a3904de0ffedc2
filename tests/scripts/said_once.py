"""What is said once is remembered by a cache, as Hugging Face's warning_once does; a trial shall not use that up."""
import functools
import logging
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
log = logging.getLogger("library")


@functools.lru_cache(None)
def warning_once(*words):
    log.warning(*words)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x, y=None):
        warning_once("the mode is %s", self.training)
        out = self.layer(x)
        return out if y is None else (out, nn.functional.cross_entropy(out, y))


warning_once("a cache that holds something is not put back")
net = Net()
opt = torch.optim.SGD(net.parameters(), 0.1)
for x, y in DataLoader(TensorDataset(torch.randn(24, 4), torch.arange(24) % 3), batch_size=8):
    loss = net(x, y)[1]
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(loss.item())
net.eval()
print(net(x).sum().item())
