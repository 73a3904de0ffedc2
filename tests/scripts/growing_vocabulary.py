"""Sentences to ids by an own collate function, which makes its vocabulary as it goes."""
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
random.seed(1)
words = [f"w{n}" for n in range(30)]
sentences = [(" ".join(random.choices(words, k=random.randint(2, 7))), n % 2) for n in range(41)]
vocabulary = {"<pad>": 0}
seen = []


def collate(samples):
    ids = []
    for text, _ in samples:
        ids.append(torch.tensor([vocabulary.setdefault(word, len(vocabulary)) for word in text.split()]))
        seen.append(text[:2])
    return pad_sequence(ids, batch_first=True), torch.tensor([y for _, y in samples]), [t for t, _ in samples]


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(40, 8, padding_idx=0), nn.Linear(8, 2)

    def forward(self, ids):
        return self.out(self.embed(ids).sum(1))


net = Bag()
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for workers in (0, 0, 2):
    for step, (ids, y, texts) in enumerate(DataLoader(sentences, 8, shuffle=True, collate_fn=collate, num_workers=workers)):
        if workers:
            assert ids.max() < 40
        loss = F.cross_entropy(net(ids), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item(), len(vocabulary), len(seen), texts[0])
print(sorted(vocabulary, key=vocabulary.get))
torch.save(net.state_dict(), "net.pt")
