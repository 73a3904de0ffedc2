"""Workers that draw from generators which `worker_init_fn` puts into the data set or its transform."""
import types

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Jitters(Dataset):
    def __init__(self):
        self.generator, self.transform = None, types.SimpleNamespace(generator=None)

    def __len__(self):
        return 13

    def __getitem__(self, i):
        return i + torch.rand(2, generator=self.transform.generator or self.generator)


def nested(number):
    get_worker_info().dataset.transform.generator = torch.Generator().manual_seed(number)


def own(number):
    get_worker_info().dataset.generator = torch.Generator().manual_seed(number)


for begin in (nested, own):
    jitters = Jitters()
    vars(jitters)
    for batch in DataLoader(jitters, batch_size=3, num_workers=2, worker_init_fn=begin):
        print(begin.__name__, batch.sum().item(), batch[0, 0].item())
