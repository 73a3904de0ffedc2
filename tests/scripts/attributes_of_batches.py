"""What a script puts on a batch, libraries copy: `vars(x)` has nothing else."""
import copy

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
net = nn.Linear(4, 3)
for x in torch.utils.data.DataLoader(torch.randn(12, 4), 6):
    y = net(x)
    loss = y.square().mean()
    y.mark = "mine"
    print(vars(y), vars(loss), y.mark, copy.deepcopy(x).sum().item(), y.grad_fn is not None, vars(x))
