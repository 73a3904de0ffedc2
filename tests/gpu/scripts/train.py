"""A script for one GPU: trains a KIND of model for some STEPS and prints its losses and what they cost.

python train.py KIND STEPS [ddp]

With `ddp`, under torchrun, the same with DistributedDataParallel as it is written by hand.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from here import begin, cost, device, synchronize
from models import make
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

WARM = 5  # steps before the time is taken
kind, steps, by_hand = sys.argv[1], int(sys.argv[2]), "ddp" in sys.argv
size, rank, own = 1, 0, False
if by_hand:
    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    own = device.type != "cpu" and torch.accelerator.device_count() >= size  # else ranks share one, which NCCL refuses
    if device.type != "cpu":
        device = torch.device(device.type, int(os.environ["LOCAL_RANK"]) if own else 0)
        torch.accelerator.set_device_index(device.index)
    dist.init_process_group(f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}" if own else "gloo")
torch.backends.cudnn.benchmark = True
net, data, batch, workers = make(kind, steps)
layout = torch.channels_last if kind == "resnet50" else torch.preserve_format
net = net.to(device, memory_format=layout)
sampler = None
if by_hand:
    net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net) if own and device.type == "cuda" else net
    net = DistributedDataParallel(net, device_ids=None if device.type == "cpu" else [device])
    sampler = DistributedSampler(data, shuffle=False)
opt = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
loader = DataLoader(data, batch // size, sampler=sampler, num_workers=-(-workers // size), pin_memory=device.type == "cuda")
losses, began, first = [], 0.0, 0.0
for step, (x, y) in enumerate(loader):
    if step == WARM:
        begin()
        began = time.perf_counter()
    x = x.to(device, non_blocking=True, memory_format=layout)
    y = y.to(device, non_blocking=True)
    opt.zero_grad()
    with torch.autocast(device.type, torch.bfloat16):
        loss = F.cross_entropy(net(x), y)
    loss.backward()
    opt.step()
    losses.append(loss.detach())
    if step == 0:
        synchronize()
        first = time.time() - float(os.environ.get("LAUNCHED", "nan"))
found = cost(steps - WARM)  # before the next line, which waits
synchronize()
found |= {"steps_per_s": (steps - WARM) / (time.perf_counter() - began), "first_step_s": first}
if rank == 0:
    print(json.dumps(found | {"losses": [x.item() for x in losses]}))
if by_hand:
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # torch's own teardown with gloo aborts now and then on a busy machine
