"""A training that wandb records offline: a configuration, metrics, a table, and the files of the run."""

import os

import torch
import wandb
from torch.utils.data import DataLoader, TensorDataset

run = wandb.init(project="tiny", name="first", id="first", mode="offline", config={"lr": 0.05, "epochs": 2})
torch.manual_seed(0)
x = torch.randn(44, 4, dtype=torch.float64)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
optimizer = torch.optim.SGD(model.parameters(), run.config.lr)
run.watch(model, log_freq=4)
for epoch in range(run.config.epochs):
    for a, b in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
        run.log({"loss": loss.item(), "epoch": epoch})
    print(epoch, loss.item())
torch.save(model.state_dict(), "weights.pt")
run.summary["best"] = loss.item()
artifact = wandb.Artifact("weights", type="model")
artifact.add_file("weights.pt")
run.log_artifact(artifact)
run.log({"rows": wandb.Table(columns=["a", "b"], data=[[1, 2.5], [2, loss.item()]])})
print(dict(run.config), run.summary["loss"], os.path.basename(run.dir))
run.finish()
