"""A stream of samples without a length, read by the main process and by two workers."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for i in range(first, 45, step):
            x = torch.sin(torch.arange(20.0) * (i + 1))
            yield x, x[:4].argmax()


net = nn.Linear(20, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
for workers in (0, 2):
    for step, (x, y) in enumerate(DataLoader(Stream(), batch_size=10, num_workers=workers)):
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(workers, step, len(x), loss.item())
torch.save(net.state_dict(), "net.pt")
