"""A first batch looked at by next(iter(loader)), then steps counted over an iterator begun anew."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(40, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
images, labels = next(iter(loader))
print(images.shape, images.dtype, labels[:5].tolist(), images.mean().item())
net = nn.Linear(images.shape[1], 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
batches = iter(loader)
for step in range(7):
    try:
        x, y = next(batches)
    except StopIteration:
        batches = iter(loader)
        x, y = next(batches)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), len(x))
print(F.cross_entropy(net(images), labels).item())
torch.save(net.state_dict(), "net.pt")
