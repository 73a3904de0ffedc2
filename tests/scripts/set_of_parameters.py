"""Parameters in sets, which each process goes through in an order of its own: as Pyro does."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x = torch.randn(101, 6)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 1))
optimizers = {}
for _ in range(2):
    for (inputs,) in DataLoader(TensorDataset(x), batch_size=32, shuffle=True):
        loss = (model(inputs)[:, 0] - inputs[:, 0]).pow(2).mean()
        loss.backward()
        for p in set(model.parameters()):
            if p not in optimizers:
                optimizers[p] = torch.optim.Adam([p], lr=0.01)
            optimizers[p].step()
        model.zero_grad()
        print(loss.item())
    torch.save(model.state_dict(), "model.pt")

kept = set(model[0].parameters())
rest = list(set(model.parameters()) - kept)
optimizer = torch.optim.Adam([{"params": rest}, {"params": list(kept), "lr": 0.001}], lr=0.01)
for (inputs,) in DataLoader(TensorDataset(x), batch_size=32, shuffle=True):
    loss = (model(inputs)[:, 0] - inputs[:, 0]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
torch.save(model.state_dict(), "model.pt")

mixed = list(set(model.parameters()))
optimizer = torch.optim.SGD(mixed, lr=0.01)
for (inputs,) in DataLoader(TensorDataset(x), batch_size=32, shuffle=True):
    loss = (model(inputs)[:, 0] - inputs[:, 0]).pow(2).mean()
    for p, g in zip(mixed, torch.autograd.grad(loss, mixed)):
        p.grad = g
    optimizer.step()
    print(loss.item())
torch.save(model.state_dict(), "model.pt")
