"""Saves that fail on the disk of rank 0 alone, and the next one; copies that are made in a save."""

import copy
import os
import resource

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Kept(nn.Linear):
    kept = ()

    def __getstate__(self):
        self.kept = [copy.copy(self.weight)]
        return {k: v for k, v in self.__dict__.items() if k != "kept"}


model = nn.Sequential(*(nn.Linear(40, 40) for _ in range(6)), Kept(40, 40)).to("cpu")
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
model(torch.randn(8, 40)).square().mean().backward()
optimizer.step()
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (10000, limits[1]))
try:
    torch.save([model.state_dict(), optimizer.state_dict()], "failed.pt")
except (RuntimeError, OSError) as error:
    print("failed", type(error).__name__)
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
if os.path.exists("failed.pt"):
    os.remove("failed.pt")
torch.save(model, "next.pt")
print(model[6].kept[0].sum().item(), model[6].kept[0][3, :4].tolist())
again = torch.load("next.pt", weights_only=False)
print([p.norm().item() for p in again.parameters()])
