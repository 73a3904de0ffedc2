"""Loops that are left early, begun again, run side by side and one in another; samples that cannot be read."""
import random

import torch
from torch.utils.data import DataLoader, Dataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class BadSample(Exception):
    pass


class Drawn(Dataset):
    def __init__(self, count, bad=()):
        self.count, self.bad = count, bad

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if i in self.bad:
            raise BadSample(f"sample {i}") if i % 2 else KeyError(i)
        return torch.rand(3) + i, f"{i} {random.random() > 2}"


def total(batch):
    return round(batch[0].sum().item(), 9), batch[1][:1]


for workers in (0, 2):
    more = {"persistent_workers": True} if workers else {}
    loader = DataLoader(Drawn(17), 4, shuffle=True, num_workers=workers, **more)
    for step, batch in enumerate(loader):
        if step == 1:
            break
    print(total(batch), total(next(iter(loader))), total(next(iter(loader))))
    print([total(b) for b in loader])
    loader = DataLoader(Drawn(13), 4, shuffle=True, num_workers=workers)
    for a, b in zip(loader, loader, strict=True):
        print(total(a), total(b))
    for batch in loader:
        print(total(batch), [total(inner) for inner in DataLoader(Drawn(5), 2, num_workers=workers)])
    for bad in ((5,), (6,)):
        stream = iter(DataLoader(Drawn(12, bad), 3, num_workers=workers))
        while True:
            try:
                print(total(next(stream)))
            except StopIteration:
                print("end")
                break
            except BadSample as error:
                print("bad", "sample 5" in str(error), error.args if not workers else len(error.args))
            except KeyError as error:
                print("key", type(error).__name__)
    print(torch.rand(1).item())
for x, name in DataLoader(Drawn(3), batch_size=None, num_workers=1):
    print(x.sum().item(), name)
