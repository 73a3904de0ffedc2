"""Trains in the WAY that is given, as people do on a GPU; prints losses and saves all weights, or prints their norms.

python equal.py WAY
"""

import sys

import torch
from here import device
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

way = sys.argv[1]
half = torch.float16 if device.type == "cuda" else torch.bfloat16
low = {"amp": half, "channels_last": torch.bfloat16}.get(way)
layout = torch.channels_last if way == "channels_last" else torch.preserve_format
modes = {"compiled": "default", "graphs": "reduce-overhead"}
torch.set_default_dtype(torch.float64 if low is None else torch.float32)
torch.backends.cudnn.benchmark = way == "channels_last"
torch.manual_seed(0)
data = TensorDataset(torch.randn(90, 3, 8, 8), torch.randint(5, (90,)))


class Block(nn.Module):
    """A layer that is computed again in the backward, with the same dropout."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return checkpoint(self.layer, x, use_reentrant=False)


def ahead(batches):
    """Copy each batch on a side stream, as apex and DALI do."""
    side = torch.cuda.Stream() if device.type == "cuda" else torch.Stream(device)
    for batch in batches:
        with torch.cuda.stream(side) if device.type == "cuda" else side:
            batch = [x.to(device, non_blocking=True) for x in batch]
        now = torch.accelerator.current_stream()
        now.wait_stream(side)
        for x in batch:
            x.record_stream(now)
        yield batch


def model():
    if way == "attention":
        layer = nn.TransformerEncoderLayer(64, 4, 64, 0.0, batch_first=True)
        return nn.Sequential(nn.Flatten(2), layer, nn.Flatten(), nn.Linear(192, 5))
    if way == "checkpoint":
        blocks = [Block(nn.Sequential(nn.Linear(192, 192), nn.ReLU(), nn.Dropout(0.2))) for _ in range(3)]
        return nn.Sequential(nn.Flatten(), *blocks, nn.Linear(192, 5))
    norm = [] if way == "dropout" else [nn.BatchNorm2d(8)]
    return nn.Sequential(nn.Conv2d(3, 8, 3, bias=way == "dropout"), *norm, nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(288, 5))


generator = None
if way == "default_device":
    torch.set_default_device(device)
    generator = torch.Generator(device).manual_seed(1)
loader = DataLoader(data, 15, shuffle=True, generator=generator, pin_memory=way == "prefetcher" and device.type == "cuda")
net = model().to(device, memory_format=layout)
run = net
if way in modes:  # the simulated device has no compiler
    run = torch.compile(net, **({"backend": "aot_eager"} if device.type == "simulated" else {"mode": modes[way]}))
opt = torch.optim.AdamW(net.parameters(), 1e-3) if way == "ema" else torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
scaler = torch.amp.GradScaler(device.type, enabled=way == "amp")
mean = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
every = 3 if way == "accumulation" else 1
for epoch in range(2):
    for step, (x, y) in enumerate(ahead(loader) if way == "prefetcher" and device.type != "cpu" else loader):
        x, y = x.to(device, memory_format=layout), y.to(device)
        with torch.autocast(device.type, low, enabled=low is not None):
            loss = F.cross_entropy(run(x), y) / every
        scaler.scale(loss).backward()
        if (step + 1) % every:
            continue
        scaler.unscale_(opt)
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        mean.update_parameters(net)
        print(loss.item(), norm.item(), scaler.get_scale())
if low is None:
    torch.save({"net": net.state_dict(), "mean": mean.state_dict(), "optimizer": opt.state_dict()}, "weights.pt")
else:  # of small weights all digits are rounding
    print(*(p.norm().item() for p in net.parameters()))
