"""The embedding and the output layer share one weight, as language models do."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(torch.tanh(self.mix(self.embedding(x))))


data = torch.randint(11, (50, 9))
loader = DataLoader(TensorDataset(data), batch_size=12, shuffle=True)
net = Tied()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for (x,) in loader:
    loss = F.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), net.head.weight is net.embedding.weight, net.head.weight.grad.norm().item())
torch.save(net.state_dict(), "net.pt")
