"""Go on from files of another run: of a model, its optimizer and its scheduler."""

import os
import sys

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x, y = torch.randn(32, 6), torch.randn(32, 3)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)
model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, amsgrad=True)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
if os.path.exists("last.pt"):
    last = torch.load("last.pt")
    print(model.load_state_dict(last["model"], strict=True))
    fewer = {name: value for name, value in last["model"].items() if "0" not in name}
    print(model.load_state_dict({**fewer, "more": x}, strict=False))
    optimizer.load_state_dict(last["optimizer"])
    scheduler.load_state_dict(last["scheduler"])
    try:
        model.load_state_dict({**fewer, "2.weight": x})
    except RuntimeError as error:
        print(error)
for a, b in loader:
    optimizer.zero_grad()
    loss = (model(a) - b).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
scheduler.step()
saved = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
torch.save({name: each.state_dict() for name, each in saved.items()}, sys.argv[1])
