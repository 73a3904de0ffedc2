"""kornia: augment whole batches of images on the device, inside of the training."""

import kornia.augmentation as K
import torch
from kornia.filters import sobel
from kornia.losses import SSIMLoss
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images[:120])[:, None] / 16
labels = torch.tensor(digits.target[:120])
loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)
augment = K.AugmentationSequential(
    K.RandomAffine(degrees=15.0, translate=(0.1, 0.1), p=0.7),
    K.RandomGaussianNoise(std=0.05, p=0.5),
    K.RandomErasing(p=0.3),
    data_keys=["input"],
)
net = nn.Sequential(
    nn.Conv2d(2, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
).double()
decoder = nn.Sequential(nn.Linear(10, 64), nn.Unflatten(1, (1, 8, 8)), nn.Sigmoid()).double()
optimizer = torch.optim.AdamW([*net.parameters(), *decoder.parameters()], lr=5e-3)
ssim = SSIMLoss(window_size=3)
for epoch in range(3):
    for x, y in loader:
        drawn = augment(x)
        logits = net(torch.cat([drawn, sobel(drawn)], 1))
        loss = nn.functional.cross_entropy(logits, y) + 0.1 * ssim(decoder(logits), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{epoch} loss {loss.item():.10f} mean {drawn.mean().item():.10f}")
torch.save(net.state_dict(), "net.pt")
