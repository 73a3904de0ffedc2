"""An average of the weights kept in buffers of the model itself, as BYOL's target network is."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class BYOL(nn.Module):
    def __init__(self):
        super().__init__()
        self.online, self.predictor = nn.Linear(20, 8), nn.Linear(8, 8)
        self.register_buffer("weight", self.online.weight.detach().clone())
        self.register_buffer("bias", self.online.bias.detach().clone())

    def forward(self, a, b):
        with torch.no_grad():
            target = F.normalize(F.linear(b, self.weight, self.bias), dim=1)
        return 2 - 2 * (F.normalize(self.predictor(self.online(a)), dim=1) * target).sum(dim=1).mean()

    @torch.no_grad()
    def update(self, tau=0.9):
        self.weight.mul_(tau).add_((1 - tau) * self.online.weight)
        self.bias.copy_(tau * self.bias + (1 - tau) * self.online.bias)


loader = DataLoader(TensorDataset(torch.randn(60, 20)), batch_size=16, shuffle=True)
model = BYOL()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for (x,) in loader:
    loss = model(x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.update()
    print(loss.item(), model.weight.norm().item())
torch.save(model.state_dict(), "model.pt")
