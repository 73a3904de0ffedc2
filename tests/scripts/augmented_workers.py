"""Random crops and flips in worker processes that stay, a plain evaluation, and the generators afterwards."""
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
random.seed(0)
images = torch.randn(46, 3, 12, 12)
labels = images.mean((2, 3)).argmax(1)


class Pictures(Dataset):
    def __init__(self, train):
        self.train = train

    def __len__(self):
        return len(images)

    def __getitem__(self, i):
        x = images[i]
        if self.train:
            top, left = torch.randint(0, 5, (2,)).tolist()
            x = x[:, top : top + 8, left : left + 8]
            x = x.flip(2) if random.random() < 0.5 else x
        else:
            x = x[:, 2:10, 2:10]
        return {"image": x, "label": labels[i], "name": f"picture {i}"}


def hello(worker):
    random.seed(worker + torch.initial_seed() % 1000)


train = DataLoader(
    Pictures(True), 10, shuffle=True, num_workers=2, persistent_workers=True, worker_init_fn=hello, prefetch_factor=3
)
test = DataLoader(Pictures(False), 16, num_workers=1)
net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(216, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for epoch in range(3):
    for batch in train:
        loss = F.cross_entropy(net(batch["image"]), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item(), batch["name"][0], batch["image"].sum().item())
    with torch.no_grad():
        right = sum((net(b["image"]).argmax(1) == b["label"]).sum().item() for b in test)
    print("right", right, len(train), torch.rand(1).item(), random.random())
torch.save(net.state_dict(), "net.pt")
