"""Batches, outputs and losses printed as tensors, in f-strings, and by repr."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(20, 3)
loader = DataLoader(TensorDataset(x, x.argmax(1)), batch_size=8, shuffle=True)
net = nn.Linear(3, 3)
for x, y in loader:
    output = net(x)
    loss = F.cross_entropy(output, y)
    loss.backward()
    print(x)
    print(y, y.dtype, x.device, x.requires_grad)
    print(f"{loss:.6f} {loss} {y[0]} {output.argmax(1)}")
    print(repr(loss.detach()), str(output.detach()), [output.shape, loss.shape])
    print("grad", net.weight.grad)
print(net)
