"""As captum does: hooked forwards, slices of the batch, and gradients with regard to it."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
for (x,) in DataLoader(TensorDataset(torch.randn(75, 6)), batch_size=20):
    handle = model[0].register_forward_hook(lambda *_: None)
    model(x)
    handle.remove()
    print((x[0 : len(x)] * 2).sum().item())
    x.requires_grad_()
    print(torch.autograd.grad(model(x)[:, 0].sum(), x)[0].sum().item())
    x.requires_grad_(False)
    ablated = [model(x * (torch.arange(6) != k)).sum().item() for k in range(6)]
    print(ablated)
