"""An LSTM of two layers with dropout between them, whose masks cuDNN keeps to itself: does it train?"""

import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.LSTM(8, 32, 2, dropout=0.2, batch_first=True).to(device)
head = nn.Linear(32, 1).to(device)
opt = torch.optim.Adam([*net.parameters(), *head.parameters()], 1e-2)
x = torch.randn(64, 6, 8).to(device)
y = x.sum((1, 2)).sign()[:, None]
losses = []
for step in range(60):
    loss = (head(net(x)[0][:, -1]) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
print("learned", losses[-1] < 0.5 * losses[0])
