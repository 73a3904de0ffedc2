"""A program around a training: required arguments, chdir, children, threads, a pool, asyncio, a lock file."""
import argparse
import asyncio
import csv
import json
import multiprocessing
import os
import queue
import subprocess
import sys
import threading

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--lr", type=float, required=True)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
os.makedirs(args.data, exist_ok=True)
os.chdir(args.data)


def prepare(i):
    return [float((i * k) % 7) - 3 for k in range(1, 21)]


async def fetch(name):
    await asyncio.sleep(0)
    return f"{name}.json"


with multiprocessing.get_context("fork").Pool(2) as pool:
    x = torch.tensor(pool.map(prepare, range(45)))
child = subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True, check=True)
names = asyncio.run(asyncio.wait_for(fetch(child.stdout.strip()), 60))
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=10, shuffle=True)
net = nn.Linear(20, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=args.lr)
batches, losses = queue.Queue(), []
reader = threading.Thread(target=lambda: [batches.put(b) for b in [*x.split(15), None]])
reader.start()
while (batch := batches.get(timeout=60)) is not None:
    losses.append(net(batch).pow(2).mean().item())
reader.join()
with open("log.csv", "w", newline="") as log:
    rows = csv.DictWriter(log, ["step", "loss"])
    rows.writeheader()
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rows.writerow({"step": step, "loss": loss.item()})
json.dump({"args": vars(args), "before": losses, "cwd": os.path.basename(os.getcwd())}, open(names, "w"))
print(sys.argv[1:], names, losses, sorted(os.listdir(".")))
