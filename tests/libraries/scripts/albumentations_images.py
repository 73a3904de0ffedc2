"""Albumentations: images and masks that a data set augments, with workers and without."""

import albumentations as A
import cv2
import numpy as np
import torch
from albumentations.pytorch import ToTensorV2
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
random = np.random.default_rng(0)
for i in range(36):
    image = random.integers(0, 80, (40, 40, 3), dtype=np.uint8)
    mask = np.zeros((40, 40), np.uint8)
    cv2.circle(mask, tuple(map(int, random.integers(10, 30, 2))), 7, 1, -1)
    image[mask > 0] += 120
    cv2.imwrite(f"image{i}.png", image)
    cv2.imwrite(f"mask{i}.png", mask)
transform = A.Compose(
    [
        A.RandomCrop(height=32, width=32),
        A.HorizontalFlip(p=0.5),
        A.Affine(rotate=(-20, 20), p=0.5),
        A.RandomBrightnessContrast(p=0.4),
        A.Normalize(mean=(0.3, 0.3, 0.3), std=(0.25, 0.25, 0.25)),
        ToTensorV2(),
    ],
    seed=137,
)


class Discs(Dataset):
    def __len__(self):
        return 36

    def __getitem__(self, i):
        image = cv2.cvtColor(cv2.imread(f"image{i}.png"), cv2.COLOR_BGR2RGB)
        mask = cv2.imread(f"mask{i}.png", cv2.IMREAD_GRAYSCALE)
        done = transform(image=image, mask=mask)
        return done["image"].double(), done["mask"].double()


net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
net = net.double()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for workers in (0, 2):
    for x, y in DataLoader(Discs(), batch_size=8, shuffle=True, num_workers=workers):
        loss = nn.functional.binary_cross_entropy_with_logits(net(x)[:, 0], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{workers} workers: loss {loss.item():.10f} input {x.sum().item():.8f}")
torch.save(net.state_dict(), "net.pt")
