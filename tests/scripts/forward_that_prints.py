# a tutorial's model that shows what comes in, prints always the same, and keeps a log of it
import logging

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
logging.basicConfig(filename="shapes.log", level=logging.INFO, format="%(message)s")


class Shown(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        print("\tin the model: input", x.size(), "hidden", tuple(hidden.shape))
        return self.last(hidden)


class Polite(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        print("hello")
        return self.layer(x)


class Logged(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        logging.info("%d rows", len(x))
        with open("seen.txt", "a") as seen:
            seen.write(f"{list(x.shape)}\n")
        return self.layer(x)


model = nn.Sequential(Shown(), Polite(), Logged())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = TensorDataset(torch.randn(20, 4), torch.randint(3, (20,)))
for x, y in DataLoader(data, 6, shuffle=True):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), model(x).shape)
torch.save(model.state_dict(), "weights.pt")
