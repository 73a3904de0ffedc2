"""The run's folder is named by the clock, and what lies in it is read back."""
import os
import time
from datetime import datetime

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

run = os.path.join("runs", datetime.now().strftime("%Y%m%d-%H%M%S"))
os.makedirs(run)
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
print(sorted(os.listdir(run)), torch.load(f"{run}/epoch2.pt")["bias"].tolist())
