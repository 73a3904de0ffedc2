"""An average of the weights in a deepcopy of the model, saved with it; the model pickled and loaded."""
import copy
import pickle

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(60, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
net = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))
ema = copy.deepcopy(net).eval().requires_grad_(False)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for epoch in range(2):
    for x, y in loader:
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for p, q in zip(net.parameters(), ema.parameters()):
                q.lerp_(p, 0.1)
        print(loss.item(), F.cross_entropy(ema(x), y).item())
later = copy.deepcopy(net)
print(type(later) is type(net), later[0].weight.grad is None, later(torch.ones(2, 20)).sum().item())
torch.save({"net": net.state_dict(), "ema": ema.state_dict()}, "both.pt")
torch.save(net, "whole_model.pt")
for again in pickle.loads(pickle.dumps(net)), torch.load("whole_model.pt", weights_only=False):
    print(type(again) is type(net), list(again.state_dict()), again(x).sum().item())
