"""A library's transform with a generator of its own, as albumentations' are: the data set holds it."""
import numpy as np
import torch
from scipy import stats
from torch.utils.data import DataLoader, Dataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
noise = stats.norm(0, 1)
noise.random_state = np.random.default_rng(5)


class Noisy(Dataset):
    def __init__(self, transform):
        self.x, self.transform = torch.arange(30.0).view(15, 2), transform

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        # of the first sample nothing tells that others draw
        return self.x[i] + (self.transform.rvs() if i % 3 else 0)


model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.001)
for workers in 0, 2:
    for x in DataLoader(Noisy(noise), batch_size=4, shuffle=True, num_workers=workers):
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item(), x.sum().item())
print(noise.rvs())
