"""A loop by hand with Lightning Fabric: clipping, accumulation, a checkpoint that is loaded."""

import torch
from lightning.fabric import Fabric
from lightning.fabric.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

fabric = Fabric(accelerator="cpu", devices=1, loggers=CSVLogger("logs"))
fabric.seed_everything(0)
fabric.launch()
x = torch.randn(60, 6, dtype=torch.float64)
y = torch.sin(x).sum(1, keepdim=True)
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
model, optimizer = fabric.setup(model, optimizer)
loader = fabric.setup_dataloaders(DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True))
step = 0
for epoch in range(3):
    for at, (a, b) in enumerate(loader):
        waits = at % 2 == 0 and at + 1 < len(loader)
        with fabric.no_backward_sync(model, enabled=waits):
            loss = torch.nn.functional.mse_loss(model(a), b)
            fabric.backward(loss)
        if not waits:
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            fabric.log("loss", loss.item(), step=step)
    fabric.print(epoch, loss.item(), fabric.all_reduce(loss).item(), fabric.world_size)
    fabric.save(f"epoch{epoch}.ckpt", {"model": model, "optimizer": optimizer, "step": step})
state = {"model": model, "optimizer": optimizer, "step": 0}
fabric.load("epoch0.ckpt", state)
with torch.no_grad():
    fabric.print(state["step"], torch.nn.functional.mse_loss(model(x), y).item())
