"""Mixed precision on the CPU: float32 weights, bfloat16 under autocast."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)

x = torch.randn(60, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
net = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = net(x)
        loss = F.cross_entropy(output, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), output.dtype, loss.dtype, net[0].weight.grad.dtype)
torch.save(net.state_dict(), "net.pt")
