"""Accumulation over four batches, fewer at the end; class weights, and targets that are ignored."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
ACCUMULATE = 4
class_weights = torch.tensor([1.0, 2.0, 0.5, 3.0])

x = torch.randn(77, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=8, shuffle=True)
net = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        y = torch.where(x[:, 9] > 0.3, torch.full_like(y, -100), y)
        loss = F.cross_entropy(net(x), y, weight=class_weights)
        (loss / ACCUMULATE).backward()
        if (i + 1) % ACCUMULATE == 0 or i + 1 == len(loader):
            norm = nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            print(i, loss.item(), norm.item())
torch.save(net.state_dict(), "net.pt")
