"""The training loop itself checkpoints a part of the model, in both kinds."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(60, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
stem = nn.Linear(20, 16)
body = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 16), nn.Tanh())
head = nn.Linear(16, 4)
net = nn.ModuleList([stem, body, head])
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for use_reentrant in (False, True):
    for x, y in loader:
        h = checkpoint(body, stem(x), use_reentrant=use_reentrant)
        h = checkpoint_sequential(body, 2, h, use_reentrant=use_reentrant)
        loss = checkpoint(lambda h: F.cross_entropy(head(h), y), h, use_reentrant=use_reentrant)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(use_reentrant, loss.item(), body[0].weight.grad.norm().item())
torch.save(net.state_dict(), "net.pt")
