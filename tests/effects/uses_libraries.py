"""What a script does that trains and logs by what packages offer; run by test_libraries.py."""

import os
import sqlite3
from pathlib import Path

os.environ.setdefault("WANDB_MODE", "offline")
import h5py
import joblib
import numpy as np
import pandas as pd
import torch
import wandb
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter
from torchvision.utils import save_image

run = Path("run")
run.mkdir()
torch.manual_seed(0)
x = torch.rand(20, 3, 4, 4, dtype=torch.float64)
y = (x.sum((1, 2, 3)) > 24).long()
model = nn.Sequential(nn.Flatten(), nn.Linear(48, 2)).double()
opt = torch.optim.SGD(model.parameters(), 0.1)
writer = SummaryWriter(run / "tb")
w = wandb.init(project="p", dir=str(run), settings=wandb.Settings(silent=True))
wandb.watch(model, log="all", log_freq=2)
db = sqlite3.connect(run / "log.db")
db.execute("create table loss (epoch, value)")
h5 = h5py.File(run / "out.h5", "w")
seen = np.memmap(run / "seen.bin", dtype="float64", mode="w+", shape=(2,))
for epoch in range(2):
    total = 0
    for a, b in DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True):
        opt.zero_grad()
        out = model(a)
        loss = nn.functional.cross_entropy(out, b)
        loss.backward()
        opt.step()
        total += loss.item()
        wandb.log({"loss": loss, "norm": [p.grad.norm() for p in model.parameters()]})
    wandb.summary["last"] = loss
    wandb.log({"batch": wandb.Image(a[0])})
    writer.add_scalar("loss", total, epoch)
    writer.add_histogram("out", out, epoch)
    save_image(a, run / "batch.png")
    save_file({"out": out.detach()}, run / "out.safetensors")
    log = pd.DataFrame({"epoch": [epoch], "loss": [round(total, 9)]})
    log.to_csv(run / "log.csv", mode="a", header=epoch == 0, index=False)
    pd.DataFrame(out.detach().numpy()).to_parquet(run / "out.parquet")
    joblib.dump(out.detach(), run / "out.joblib")
    db.execute("insert into loss values (?, ?)", (epoch, total))
    db.commit()
    h5[f"epoch {epoch}"] = out.detach()
    seen[epoch] = total
writer.close()
db.close()
h5.close()
print(
    Path(w.dir).parent.name.startswith("offline-run-"),
    w.summary["loss"] > 0,
    w.summary["last"] > 0,
    w.step,
)
wandb.finish()
print(pd.read_csv(run / "log.csv").to_dict(), pd.read_parquet(run / "out.parquet").shape)
rows = sqlite3.connect(run / "log.db").execute("select * from loss").fetchall()
print([f"{value:.9f}" for _, value in rows], list(h5py.File(run / "out.h5")))
print(load_file(run / "out.safetensors")["out"].shape, joblib.load(run / "out.joblib").shape)
print([f"{value:.9f}" for value in np.fromfile(run / "seen.bin")], sorted(os.listdir(run)))
print(
    len(list((run / "tb").iterdir())),
    len(list(run.glob("wandb/*/*.wandb"))),
    len(list(run.rglob("*.png"))),
)
