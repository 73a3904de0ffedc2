"""Resumes in the middle of an epoch: model, optimizer, scheduler, the states of all generators, the best so far."""
import os
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
x = torch.sin(torch.arange(1200.0) * 1.7).view(60, 20)
data = TensorDataset(x, x[:, :4].argmax(1))


def states():
    return {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()}


def train(until):
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(20, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4)).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, amsgrad=True)
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3), torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)],
        milestones=[3],
    )
    step, best = 0, float("inf")
    if os.path.isfile("last.pt"):
        kept = torch.load("last.pt", map_location=lambda storage, location: storage, weights_only=False)
        net.load_state_dict(kept["net"])
        optimizer.load_state_dict(kept["optimizer"])
        schedule.load_state_dict(kept["schedule"])
        torch.set_rng_state(kept["torch"])
        np.random.set_state(kept["numpy"])
        random.setstate(kept["python"])
        step, best = kept["step"], kept["best"]
        print("resumed", step, best)
    while step < until:
        for x, y in DataLoader(data, batch_size=16, shuffle=True):
            x = x * random.uniform(0.9, 1.1) + np.random.normal(0, 0.01)
            loss = F.cross_entropy(net(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            step, best = step + 1, min(best, loss.item())
            print(step, loss.item(), optimizer.param_groups[0]["lr"])
            kept = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
            torch.save({**kept, **states(), "step": step, "best": best}, "last.pt")
            if step == until:
                break


train(3)
train(7)
