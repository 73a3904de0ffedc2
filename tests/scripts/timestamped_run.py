"""Folders of a run, named by the clock, that must not exist yet; files renamed, removed and read back."""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
run = os.path.join("runs", datetime.now().strftime("%Y%m%d-%H%M%S"))
os.makedirs(run, exist_ok=False)
Path(run, "kept").mkdir()
try:
    os.makedirs(run, exist_ok=False)
except FileExistsError as error:
    print("there already:", error.filename == run)
print("run folder", run)
start = time.time()
net = nn.Linear(20, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(3):
    loss = net(torch.randn(12, 20)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(epoch, loss.item())
    torch.save(net.state_dict(), f"{run}/epoch{epoch}.pt")
with open(f"{run}/summary.txt", "w") as f:
    f.write(f"loss {loss.item()!r}, quick {time.time() - start < 60}\n")
os.rename(f"{run}/epoch2.pt", f"{run}/kept/last.pt")
os.remove(f"{run}/epoch0.pt")
if not os.path.exists("runs/other"):
    os.mkdir("runs/other")
print(sorted(str(path) for path in Path("runs").rglob("*")), torch.load(f"{run}/kept/last.pt")["bias"].tolist())
