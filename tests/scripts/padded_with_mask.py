"""Texts in buckets of like length; a collate function that pads, and a mask that attention and pooling use."""
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
random.seed(0)


class Buckets(BatchSampler):
    def __iter__(self):
        order = sorted(self.sampler, key=lambda i: len(texts[i][0]))
        batches = [order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size)]
        random.shuffle(batches)
        return iter(batches)


def pad(samples):
    longest = max(len(s) for s, _ in samples)
    ids = torch.tensor([s + [0] * (longest - len(s)) for s, _ in samples])
    return {"ids": ids, "mask": ids != 0, "labels": torch.tensor([y for _, y in samples])}


texts = [([1 + (i * k) % 10 for k in range(3 + i % 6)], i % 3) for i in range(40)]
model = nn.ModuleDict({"embedding": nn.Embedding(11, 8, padding_idx=0), "layer": nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True), "out": nn.Linear(8, 3)})
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for batch in DataLoader(texts, batch_sampler=Buckets(RandomSampler(texts), 9, False), collate_fn=pad):
    hidden = model["layer"](model["embedding"](batch["ids"]), src_key_padding_mask=~batch["mask"])
    mask = batch["mask"].unsqueeze(-1)
    loss = F.cross_entropy(model["out"]((hidden * mask).sum(1) / mask.sum(1)), batch["labels"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(tuple(batch["ids"].shape), loss.item())
torch.save(model.state_dict(), "model.pt")
