"""nn.DataParallel around the model, whatever the machine; saved through .module."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

x = torch.randn(60, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
model = nn.DataParallel(nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    x, y = x.to(device), y.to(device)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
print(list(model.state_dict()))
torch.save(model.module.state_dict(), "net.pt")
