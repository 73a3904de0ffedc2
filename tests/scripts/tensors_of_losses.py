"""Tensors made of losses and outputs that still have their graphs, as beginners do."""
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
model = nn.Linear(6, 3)
losses = []
for x, y in DataLoader(TensorDataset(torch.randn(17, 6), torch.arange(17) % 3), batch_size=6):
    out = model(x)
    loss = F.cross_entropy(out, y)
    loss.backward()
    losses.append(loss)
    print(torch.tensor(loss).item(), torch.tensor(out).sum().item(), x.new_tensor(loss).item())
print(torch.tensor(losses).mean().item(), torch.tensor([loss, 2.0]).sum().item())
print(torch.as_tensor(losses).sum().item(), torch.tensor(loss).requires_grad)
