"""A thread of the script's own fetches ahead: from iterators made in it, and made before it."""
import queue
import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Noise(Dataset):
    def __len__(self):
        return 22

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        return torch.rand(4, generator=generator), f"{i}"


def ahead(iterator, waiting):
    for batch in iterator:
        waiting.put(batch)
    waiting.put(None)


net = nn.Linear(4, 2)
for workers in (0, 2):
    loader = DataLoader(Noise(), 5, num_workers=workers)
    for made in (loader, iter(loader)):
        waiting = queue.Queue(2)
        thread = threading.Thread(target=ahead, args=(made, waiting))
        thread.start()
        while (batch := waiting.get()) is not None:
            print(net(batch[0]).square().mean().item(), batch[1][0])
        thread.join()
