"""Folders that must not exist yet: makedirs without exist_ok, mkdir, and a second try that fails."""
import os
from pathlib import Path

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

os.makedirs("runs/first", exist_ok=False)
Path("runs/second").mkdir()
try:
    os.makedirs("runs/first", exist_ok=False)
except FileExistsError as error:
    print("there already:", error.filename)
net = nn.Linear(20, 4)
for epoch in range(2):
    net(torch.randn(12, 20)).pow(2).mean().backward()
    print(epoch, net.weight.grad.norm().item())
    torch.save(net.state_dict(), f"runs/first/epoch{epoch}.pt")
os.rename("runs/first/epoch1.pt", "runs/second/last.pt")
Path("runs/second/note.txt").write_text(f"grad {net.weight.grad.norm().item()!r}\n")
os.remove("runs/first/epoch0.pt")
if not os.path.exists("runs/third"):
    os.mkdir("runs/third")
print(sorted(str(path) for path in Path("runs").rglob("*")))
