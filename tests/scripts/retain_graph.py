"""One forward, two losses, two backwards; and the gradient of each part looked at in between."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(60, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
body, head, aux = nn.Sequential(nn.Linear(20, 16), nn.ReLU()), nn.Linear(16, 4), nn.Linear(16, 20)
net = nn.ModuleList([body, head, aux])
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader:
    h = body(x)
    h.retain_grad()
    main, side = F.cross_entropy(head(h), y), F.mse_loss(aux(h), x)
    optimizer.zero_grad()
    main.backward(retain_graph=True)
    first = body[0].weight.grad.norm().item()
    side.backward()
    optimizer.step()
    print(main.item(), side.item(), first, body[0].weight.grad.norm().item(), h.grad.norm().item())
torch.save(net.state_dict(), "net.pt")
