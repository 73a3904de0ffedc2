"""The body is frozen for an epoch, then thawed with a smaller learning rate."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(60, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
body = nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.ReLU())
head = nn.Linear(16, 4)
net = nn.Sequential(body, head)
body.requires_grad_(False)
body.eval()
optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
for epoch in range(2):
    if epoch == 1:
        body.requires_grad_(True)
        body.train()
        optimizer.add_param_group({"params": body.parameters(), "lr": 0.01})
    for x, y in loader:
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item(), [p.grad is None for p in net.parameters()])
torch.save(net.state_dict(), "net.pt")
