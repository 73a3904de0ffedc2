"""backward(inputs=...) fills the gradients of the head alone; the body follows by another loss."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(60, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
body, head = nn.Sequential(nn.Linear(20, 16), nn.ReLU()), nn.Linear(16, 4)
net = nn.ModuleList([body, head])
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader:
    h = body(x)
    loss = F.cross_entropy(head(h), y)
    adversarial = -0.1 * F.cross_entropy(head(h), (y + 1) % 4)
    optimizer.zero_grad()
    loss.backward(inputs=list(head.parameters()), retain_graph=True)
    print(body[0].weight.grad is None, head.weight.grad.norm().item())
    adversarial.backward(inputs=list(body.parameters()))
    optimizer.step()
    print(loss.item(), adversarial.item(), body[0].weight.grad.norm().item())
torch.save(net.state_dict(), "net.pt")
