"""A model that counts its calls, warms up by them, and remembers its losses in a list."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(20, 4)
        self.calls, self.history = 0, []
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x):
        self.calls += 1
        self.steps += 1
        output = self.fc(x) * min(1.0, self.calls / 3)
        self.history.append(output.detach().abs().mean().item())
        return output


x = torch.randn(60, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
net = Counting()
optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
for epoch in range(2):
    for x, y in loader:
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item(), net.calls, net.steps.item(), len(net.history), net.history[-1])
torch.save({"net": net.state_dict(), "history": net.history}, "net.pt")
