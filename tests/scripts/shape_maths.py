"""Sizes of the batch in every form: len, shape, size, numel, nelement, dim; and arithmetic on them."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

loader = DataLoader(TensorDataset(torch.randn(47, 3, 4), torch.randn(47)), batch_size=10, shuffle=True)
net = nn.Linear(12, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
seen = 0
for x, y in loader:
    b, c, w = x.shape
    seen += len(x)
    print(len(x), x.size(), x.size(0), x.shape[0] / 2, x.numel(), x.nelement(), x.dim(), x.ndim, x.stride())
    print(f"[{seen}/{len(loader.dataset)} ({100.0 * seen / len(loader.dataset):.0f}%)]", y.element_size(), x.is_contiguous())
    flat = x.reshape(b, c * w)
    output = net(flat).view(-1)
    loss = ((output - y) ** 2).sum() / b
    position = torch.arange(b, dtype=x.dtype) / b
    weighted = (position * (output - y).abs()).sum() / position.sum()
    optimizer.zero_grad()
    (loss + weighted).backward()
    optimizer.step()
    print(loss.item(), weighted.item(), torch.zeros(len(y)).shape == y.shape, (output == y).sum().item() / b)
torch.save(net.state_dict(), "net.pt")
