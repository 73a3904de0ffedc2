"""Batches that threads of the script read, as callbacks of Keras and writers of logs do."""

import os
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.pool import ThreadPool

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)).eval()
pool, many, waiting, seen = ThreadPoolExecutor(2), ThreadPool(2), queue.Queue(), {}
proxy = type("Proxy", (), {"__getattr__": lambda self, name: 3})()  # no function
queue.Queue().put(proxy)


def total(values, factor=1.0):
    return factor * values["out"].numpy().sum() + values["rows"][0].detach().max().item()


def read():  # sooner on some ranks
    time.sleep(os.getpid() % 2 * 2e-3)
    seen["last"] = named.sum().item()


def write():
    while (item := waiting.get()) is not None:
        number, values = item
        seen[number] = float(values.square().sum())


writer = threading.Thread(target=write)
writer.start()
later = []
for number, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(96, 6)), 6)):
    with torch.no_grad():
        out = model(x)
        later.append(pool.submit(total, {"out": out, "rows": [x[:, 1:]]}))
        waiting.put((number, out + 1))
        later.append(pool.submit(partial(total, factor=2.0), {"out": x * 2, "rows": (out,)}))
        both = many.map_async(lambda t: t.numpy().sum().item(), [out, out * 4])
        kept, named = out[:, :1] * 3, out * 5
        later.append(pool.submit(lambda kept=kept, x=x: kept.sum().item() + x.mean().item()))
        thread = threading.Thread(target=read)
        thread.start()
        print(torch.sort(out - 1, 0).values[0].tolist(), torch.median(x * 2).item())
        thread.join()
        print([f"{value:.12f}" for value in both.get()])
waiting.put(None)
writer.join()
for one in later:
    print(f"{one.result():.12f}")
print({key: f"{value:.12f}" for key, value in sorted(seen.items(), key=str)})
