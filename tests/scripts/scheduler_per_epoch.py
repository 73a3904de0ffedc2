"""StepLR, stepped with every epoch."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(50, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
net = nn.Linear(20, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9, weight_decay=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
for epoch in range(4):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    scheduler.step()
    print(epoch, total / len(loader), optimizer.param_groups[0]["lr"])
torch.save([net.state_dict(), optimizer.state_dict()], "all.pt")
