"""logging to a file and to the console, as a long-running job does."""
import logging
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

logger = logging.getLogger("train")
logger.setLevel(logging.INFO)
for handler in (logging.FileHandler("train.log", mode="w"), logging.StreamHandler(sys.stdout)):
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
    logger.addHandler(handler)

x = torch.randn(45, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
net = nn.Linear(20, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
for epoch in range(2):
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logger.info("epoch %d step %d loss %r", epoch, step, loss.item())
logger.warning("done, |w| = %r", net.weight.norm().item())
