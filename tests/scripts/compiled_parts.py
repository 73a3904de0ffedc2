"""torch.compile of a submodule, in place, and of a whole step; jit.script and jit.trace of models."""
import io
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore", category=DeprecationWarning)
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(48, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.out = nn.Sequential(nn.Linear(20, 16), nn.Dropout(0.1), nn.ReLU()), nn.Linear(16, 4)

    def forward(self, x):
        return self.out(self.body(x))


def train(name, model, step=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) if step is None else step(model, x, y)
        if loss.requires_grad:
            loss.backward()
        optimizer.step()
        print(name, loss.item())
    torch.save(model.state_dict(), f"{name}.pt")


@torch.compile(backend="eager")
def step(model, x, y):
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return loss.detach()


part = Net()
part.body = torch.compile(part.body, backend="aot_eager")
train("part", part)
inplace = Net()
inplace.compile(backend="aot_eager")
train("inplace", inplace)
train("step", Net(), step)
scripted = torch.jit.script(Net())
train("scripted", scripted)
traced = torch.jit.trace(Net().eval(), x[:16])
train("traced", traced)
kept = io.BytesIO()
torch.jit.save(traced, kept)
kept.seek(0)
print(torch.jit.load(kept)(x).sum().item())
