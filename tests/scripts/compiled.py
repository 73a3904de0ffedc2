"""torch.compile of the model, and of a function of the step."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(48, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
net = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))
model = torch.compile(net, backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.compile(backend="aot_eager")
def smoothed(logits, target):
    return F.cross_entropy(logits, target, label_smoothing=0.1) + 1e-3 * logits.pow(2).mean()


for x, y in loader:
    loss = smoothed(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
torch.save(net.state_dict(), "net.pt")
