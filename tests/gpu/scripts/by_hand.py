"""What `train.py` does, with DistributedDataParallel written by hand; torchrun starts it."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import make
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

WARM = 5
kind, steps = sys.argv[1], int(sys.argv[2])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
on_gpu = torch.cuda.is_available()
own = on_gpu and torch.cuda.device_count() >= size  # else ranks share one, which NCCL refuses
dist.init_process_group("nccl" if own else "gloo")
device = (
    torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    if on_gpu
    else torch.device("cpu")
)
if on_gpu:
    torch.cuda.set_device(device)
torch.backends.cudnn.benchmark = True
net, data, batch, workers = make(kind, steps * make(kind, 1)[2])
layout = torch.channels_last if kind == "resnet50" else torch.contiguous_format
net = net.to(device, memory_format=layout)
if kind == "resnet50":
    net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net) if own else net
net = DistributedDataParallel(net, device_ids=[device] if on_gpu else None)
opt = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
scaler = torch.amp.GradScaler(device.type, enabled=on_gpu)
sampler = DistributedSampler(data, shuffle=False)
loader = DataLoader(data, batch // size, sampler=sampler, num_workers=-(-workers // size), pin_memory=on_gpu)


def wait():
    if on_gpu:
        torch.cuda.synchronize()


begun, first = 0.0, 0.0
for step, (x, y) in enumerate(loader):
    if step == WARM:
        wait()
        begun = time.perf_counter()
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
    x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
    if kind == "resnet50":
        x = x.to(memory_format=layout)
    opt.zero_grad(set_to_none=True)
    with torch.autocast(device.type, torch.float16 if on_gpu else torch.bfloat16, enabled=on_gpu):
        loss = F.cross_entropy(net(x), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step == 0:
        wait()
        first = time.time() - float(os.environ.get("LAUNCHED", "nan"))
wait()
if rank == 0:
    cost = {"steps_per_s": (step + 1 - WARM) / (time.perf_counter() - begun)}
    cost["peak_mb"] = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else 0.0
    print(json.dumps(cost | {"first_step_s": first}))
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # torch's own teardown with gloo aborts now and then on a busy machine
