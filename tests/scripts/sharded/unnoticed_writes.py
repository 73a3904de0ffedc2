"""Writes by the data of a parameter, which autograd does not notice, between a forward and a backward."""
import copy

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
a, b = nn.ParameterList([nn.Parameter(torch.randn(4, 3, 2)), nn.Parameter(torch.randn(6))]).to("cpu")
after = (a.flip(0) * a).sum() + b.tanh().sum()
a.data.view(-1)[2:7].mul_(0.5)
a.view(-1).data[:2] = 3
after.backward()
print(a.tolist(), a.grad.tolist(), b.grad.tolist(), copy.deepcopy(a.data.view(-1)[3:]).tolist())
