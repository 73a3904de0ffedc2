"""Numbers of the script's hooks, which are keys of a module's hooks, as pruning shows them."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 3))
prune.random_unstructured(model[3], name="weight", amount=0.3)
print([*model[3]._forward_pre_hooks])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
optimizer.register_step_post_hook(lambda *_: None)
data = TensorDataset(torch.randn(15, 1, 8, 8), torch.arange(15) % 3)
for x, y in DataLoader(data, 3):  # a row for each of three ranks
    handle = model[0].register_forward_hook(lambda *_: None)
    x.requires_grad_()
    optimizer.zero_grad()
    hidden = model[:3](x.contiguous(memory_format=torch.channels_last))
    hidden.retain_grad()
    loss = F.cross_entropy(model[3](hidden), y)
    loss.backward()
    optimizer.step()
    handle.remove()
    print(handle.id, f"{loss.item():.12f}", f"{x.grad.abs().sum():.12f} {hidden.grad.abs().sum():.12f}")
hook = next(iter(model.parameters())).register_hook(lambda g: None)
prune.l1_unstructured(model[0], name="weight", amount=0.5)
print([*model[0]._forward_pre_hooks], hook.id, [*optimizer._optimizer_step_post_hooks])
