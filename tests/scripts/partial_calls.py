"""Training through methods and parts of the model, never through model(x); then through nn.DataParallel."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))
        self.decoder = nn.Linear(4, 20)
        self.scale = nn.Parameter(torch.ones(4))

    def encode(self, x):
        return self.encoder(x) * self.scale

    def decode(self, z):
        return self.decoder(z)


loader = DataLoader(TensorDataset(torch.randn(60, 20)), batch_size=16, shuffle=True)
model = AutoEncoder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(2):
    for (x,) in loader:
        z = model.encode(x)
        loss = F.mse_loss(model.decode(z), x) + 0.01 * z.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item(), z.std().item(), F.linear(x, model.decoder.weight.t()).mean().item())
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ids = list(range(torch.cuda.device_count()))
wrapped = nn.DataParallel(nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4)), device_ids=ids or None).to(device)
optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
for (x,) in loader:
    x = x.to(device)
    loss = F.cross_entropy(wrapped(x), x[:, :4].argmax(1)) + 0.1 * wrapped.module(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
print(list(wrapped.state_dict()))
torch.save([model.state_dict(), wrapped.module.state_dict()], "model.pt")
