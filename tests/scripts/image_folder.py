"""Images of a folder, decoded by PIL, and kept in a cache by the data set."""
import os

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
rng = np.random.default_rng(0)
os.makedirs("images/cat")
os.makedirs("images/dog")
for i in range(20):
    Image.fromarray(rng.integers(0, 255, (6, 6, 3), dtype=np.uint8)).save(f"images/{('cat', 'dog')[i % 2]}/{i}.png")


class Folder(Dataset):
    def __init__(self, root):
        self.classes = sorted(os.listdir(root))
        self.files = [(os.path.join(root, c, f), k) for k, c in enumerate(self.classes) for f in sorted(os.listdir(os.path.join(root, c)))]
        self.cache = {}

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        path, label = self.files[i]
        if path not in self.cache:
            with Image.open(path) as image:
                self.cache[path] = np.asarray(image.convert("RGB"), dtype=np.float64).transpose(2, 0, 1) / 255
        return torch.from_numpy(self.cache[path]), label


folder = Folder("images")
net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in DataLoader(folder, batch_size=8, shuffle=True):
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(epoch, loss.item())
torch.save(net.state_dict(), "net.pt")
