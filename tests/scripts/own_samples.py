"""What a loop writes into samples is in the data set: without workers they are its own objects."""
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
records = [{"x": torch.randn(4), "loss": 1.0, "name": str(i)} for i in range(21)]


class Stream(IterableDataset):
    def __iter__(self):
        yield from records


class Draws(Dataset):
    def __len__(self):
        return len(records)

    def __getitem__(self, i):
        records[i]["noise"] = torch.randn(4)
        return records[i]


def itself(samples):
    return samples


def scored(loader):
    """A replay buffer's loop: the score of each sample is kept with it."""
    for samples in loader:
        loss = net(torch.stack([s["x"] for s in samples])).square().squeeze(1)
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
        for sample, score in zip(samples, loss.tolist()):
            sample["loss"] = score
            sample["x"].mul_(1.01)
    weighted = torch.stack([s["x"] * s["loss"] + s.get("noise", 0) for s in records])
    print(sum(s["loss"] for s in records), net(weighted).square().mean().item())


scored(DataLoader(records, 5, shuffle=True, collate_fn=itself))
scored(DataLoader(Stream(), 5, collate_fn=itself))
scored(DataLoader(Draws(), 5, shuffle=True, collate_fn=itself))
scored(DataLoader(records, 5, collate_fn=itself, num_workers=1))  # workers send copies
table = torch.randn(21, 4)
for (row,) in DataLoader(TensorDataset(table), batch_size=None):
    row.mul_(2)
print(table.sum().item(), net(table).square().mean().item())
for _ in range(2):
    for (row,) in DataLoader(TensorDataset(table), batch_size=None, shuffle=True):
        loss = net(row[None]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        row.add_(0.1)
    print(loss.item(), table.sum().item())
