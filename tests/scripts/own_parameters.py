"""A module with a `parameters()` of its own, as in implementations of MAML."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.vars = nn.ParameterList([torch.randn(3, 4), torch.zeros(3)])

    def forward(self, x, vars=None):
        weight, bias = vars or self.vars
        return F.linear(x, weight, bias)

    def parameters(self):
        return self.vars


model = Learner()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in DataLoader(TensorDataset(torch.randn(17, 4), torch.arange(17) % 3), batch_size=5):
    grads = torch.autograd.grad(F.cross_entropy(model(x), y), model.parameters(), create_graph=True)
    adapted = [p - 0.1 * g for p, g in zip(model.parameters(), grads)]
    loss = F.cross_entropy(model(x, adapted), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
