"""What is drawn for a batch, of several sizes and layouts, and what the generator draws next: bit by bit."""

import zlib

import torch
from here import device
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def bits(x):
    return zlib.crc32(x.detach().float().cpu().numpy().tobytes())


torch.manual_seed(0)
for shape in ((2, 3), (7, 5), (33, 64, 31), (16, 8, 32, 32), (64, 40000)):
    ((x,),) = DataLoader(TensorDataset(torch.ones(shape)), shape[0])
    x = x.to(device, memory_format=torch.channels_last if len(shape) == 4 else torch.preserve_format)
    for x in (x, x.to(torch.bfloat16)):
        drawn = F.dropout(x, 0.3) != 0, torch.rand_like(x), torch.randn_like(x), torch.bernoulli(x * 0.4)
        print(shape, x.dtype, *map(bits, drawn))
    print(torch.rand(1, device=device).item())
