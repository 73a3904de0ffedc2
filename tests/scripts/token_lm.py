"""(B, T, V) logits viewed as (B*T, V), padding ignored, accuracy over what counts; one weight for both ends."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
PAD = 0


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.mix, self.head = nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(torch.tanh(self.mix(self.embedding(x))))


data = TensorDataset(torch.randint(1, 11, (40, 7)), torch.randint(0, 11, (40, 7)))
loader = DataLoader(data, batch_size=9, shuffle=True)
net = Tied()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
for x, y in loader:
    logits = net(x)
    loss = F.cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1), ignore_index=PAD)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mask = y != PAD
    accuracy = ((logits.argmax(-1) == y) & mask).sum().item() / mask.sum().item()
    unmasked = F.nll_loss(F.log_softmax(logits, -1).transpose(1, 2), y)
    by_hand = (F.cross_entropy(logits.transpose(1, 2), y, reduction="none") * mask).sum() / mask.sum()
    print(loss.item(), math.exp(loss.item()), accuracy, unmasked.item(), by_hand.item())
    print(net.head.weight is net.embedding.weight, net.head.weight.grad.norm().item())
torch.save(net.state_dict(), "lm.pt")
