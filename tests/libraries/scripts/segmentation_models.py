"""segmentation-models-pytorch: a U-Net on a ResNet encoder, Dice loss, and scores of pixels."""

import numpy as np
import segmentation_models_pytorch as smp
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
random = np.random.default_rng(0)
rows, columns = np.mgrid[:32, :32]
masks = []
for _ in range(20):
    a, b, radius = random.integers(8, 24), random.integers(8, 24), random.integers(4, 9)
    masks.append((rows - a) ** 2 + (columns - b) ** 2 < radius**2)
masks = torch.tensor(np.array(masks))[:, None].double()
images = masks + 0.4 * torch.randn(20, 3, 32, 32, dtype=torch.float64)
train = DataLoader(TensorDataset(images[:14], masks[:14]), batch_size=6, shuffle=True)
valid = DataLoader(TensorDataset(images[14:], masks[14:]), batch_size=3)

model = smp.Unet("resnet18", encoder_weights=None, encoder_depth=3,
                 decoder_channels=(32, 16, 8), in_channels=3, classes=1).double()  # fmt: skip
loss_fn = smp.losses.DiceLoss(smp.losses.BINARY_MODE, from_logits=True)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    for loader, name in ((train, "train"), (valid, "valid")):
        model.train(name == "train")
        losses, counts = [], []
        for image, mask in loader:
            with torch.set_grad_enabled(name == "train"):
                logits = model(image)
                loss = loss_fn(logits, mask)
            if name == "train":
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            guess = (logits.sigmoid() > 0.5).long()
            counts.append(smp.metrics.get_stats(guess, mask.long(), mode="binary"))
            losses.append(loss.item())
        counts = [torch.cat(parts) for parts in zip(*counts, strict=True)]
        iou = smp.metrics.iou_score(*counts, reduction="micro-imagewise")
        f1 = smp.metrics.f1_score(*counts, reduction="micro")
        print(epoch, name, *(f"{v:.10f}" for v in losses), f"{iou.item():.10f} {f1.item():.10f}")
model.save_pretrained("saved")
