"""A script for one GPU: trains a KIND of model for some STEPS and prints its losses and what they cost.

python train.py KIND STEPS
"""

import json
import os
import sys
import time
import warnings

import torch
import torch.nn.functional as F
from models import make
from torch.utils.data import DataLoader

WARM = 5  # steps before the time is taken
kind, steps = sys.argv[1], int(sys.argv[2])
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_gpu = device.type == "cuda"
torch.backends.cudnn.benchmark = True
net, data, batch, workers = make(kind, steps * make(kind, 1)[2])
layout = torch.channels_last if kind == "resnet50" else torch.contiguous_format
net = net.to(device, memory_format=layout)
opt = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
scaler = torch.amp.GradScaler(device.type, enabled=on_gpu)
loader = DataLoader(data, batch, num_workers=workers, pin_memory=on_gpu)


def wait():
    if on_gpu:
        torch.cuda.synchronize()


losses, begun, first, seen = [], 0.0, 0.0, []
for step, (x, y) in enumerate(loader):
    if step == WARM:
        wait()
        begun = time.perf_counter()
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.set_sync_debug_mode("warn")
        seen = warnings.catch_warnings(record=True).__enter__()
        warnings.simplefilter("always")
    x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
    if kind == "resnet50":
        x = x.to(memory_format=layout)
    opt.zero_grad(set_to_none=True)
    with torch.autocast(device.type, torch.float16 if on_gpu else torch.bfloat16, enabled=on_gpu):
        loss = F.cross_entropy(net(x), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    losses.append(loss.detach())
    if step == 0:
        wait()
        first = time.time() - float(os.environ.get("LAUNCHED", "nan"))
if on_gpu:
    torch.cuda.set_sync_debug_mode("default")
wait()
print(
    json.dumps(
        {
            "losses": [x.item() for x in losses],
            "steps_per_s": (steps - WARM) / (time.perf_counter() - begun),
            "peak_mb": torch.cuda.max_memory_allocated() / 2**20 if on_gpu else 0.0,
            "first_step_s": first,
            "syncs_per_step": sum("synchroniz" in str(w.message) for w in seen) / (steps - WARM),
        }
    )
)
