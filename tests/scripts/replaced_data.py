"""Plain tensors get the memory of a batch, and of what is computed from it."""
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen, queue = torch.zeros(1), torch.nn.Parameter(torch.zeros(1), requires_grad=False)
for (x,) in DataLoader(TensorDataset(torch.randn(22, 3)), batch_size=6, shuffle=True):
    out = model(x)
    seen.data = x * 2
    queue.data = out.detach()
    optimizer.zero_grad()
    out.square().mean().backward()
    optimizer.step()
    seen[0] += 1
    print(seen.shape, seen.sum().item(), queue.tolist(), seen.data.mean().item())
print(model.weight.tolist())
