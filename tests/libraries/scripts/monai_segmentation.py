"""MONAI: segment discs with a U-Net; transforms of dictionaries, Dice loss, sliding windows."""

import numpy as np
import torch
from monai.data import CacheDataset, DataLoader, decollate_batch
from monai.inferers import sliding_window_inference
from monai.losses import DiceCELoss
from monai.metrics import DiceMetric
from monai.networks.nets import UNet
from monai.transforms import AsDiscrete, Compose, EnsureChannelFirstd, EnsureTyped
from monai.transforms import RandFlipd, RandGaussianNoised, RandSpatialCropd, ScaleIntensityd
from monai.utils import set_determinism

set_determinism(seed=0)
random = np.random.RandomState(0)
rows, columns = np.mgrid[:32, :32]
files = []
for _ in range(18):
    (a, b), radius = random.randint(8, 24, 2), random.randint(4, 8)
    disc = ((rows - a) ** 2 + (columns - b) ** 2 < radius**2).astype(np.float64)
    files.append({"image": disc + random.randn(32, 32) * 0.3, "label": disc})
keys = ["image", "label"]
first = EnsureChannelFirstd(keys, channel_dim="no_channel")
whole = [first, ScaleIntensityd("image"), EnsureTyped(keys, dtype=torch.float64)]
drawn = [
    RandSpatialCropd(keys, roi_size=(24, 24), random_size=False),
    RandFlipd(keys, prob=0.5, spatial_axis=0),
    RandGaussianNoised("image", prob=0.5, std=0.1, dtype=np.float64),
]
train = CacheDataset(files[:12], Compose(whole + drawn), cache_rate=1.0, progress=False)
val = CacheDataset(files[12:], Compose(whole), cache_rate=1.0, progress=False)
model = UNet(2, 1, 2, channels=(8, 16, 32), strides=(2, 2), num_res_units=1, norm="batch").double()
loss_function = DiceCELoss(to_onehot_y=True, softmax=True)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
metric = DiceMetric(include_background=False)
post_pred, post_label = AsDiscrete(argmax=True, to_onehot=2), AsDiscrete(to_onehot=2)
best = -1.0
for epoch in range(3):
    model.train()
    for batch in DataLoader(train, batch_size=4, shuffle=True):
        optimizer.zero_grad()
        loss = loss_function(model(batch["image"]), batch["label"])
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.10f}")
    model.eval()
    with torch.no_grad():
        for batch in DataLoader(val, batch_size=2):
            out = sliding_window_inference(batch["image"], (24, 24), 4, model, overlap=0.5)
            guesses = [post_pred(i) for i in decollate_batch(out)]
            metric(y_pred=guesses, y=[post_label(i) for i in decollate_batch(batch["label"])])
    score = metric.aggregate().item()
    metric.reset()
    if score > best:
        best = score
        torch.save(model.state_dict(), "best_metric_model.pth")
    print(f"epoch {epoch} mean dice {score:.10f}")
