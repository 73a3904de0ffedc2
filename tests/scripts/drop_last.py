"""drop_last: the short last batch is left out, in len(loader) too."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(50, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True, drop_last=True)
print(len(loader), loader.batch_size, len(loader.dataset))
net = nn.Linear(20, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
for epoch in range(3):
    seen = 0
    for x, y in loader:
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += x.shape[0]
        print(loss.item())
    print(epoch, seen)
torch.save(net.state_dict(), "net.pt")
