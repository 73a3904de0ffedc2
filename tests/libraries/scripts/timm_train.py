"""timm: its own loader of images in folders, mixup, EMA weights, and CheckpointSaver."""

import os

import numpy as np
import timm
import torch
from PIL import Image
from timm.data import Mixup, create_dataset, create_loader
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, CheckpointSaver, ModelEmaV3, accuracy, random_seed, update_summary

random_seed(0, 0)
draw = np.random.default_rng(0)
for split, count in (("train", 24), ("val", 12)):
    for i in range(count):
        os.makedirs(f"images/{split}/class{i % 3}", exist_ok=True)
        pixels = draw.integers(0, 100, (40, 40, 3)) + 60 * np.eye(3)[i % 3]
        Image.fromarray(pixels.astype("uint8")).save(f"images/{split}/class{i % 3}/{i}.png")
sets = {split: create_dataset("folder", root="images", split=split) for split in ("train", "val")}
size = {"input_size": (3, 32, 32), "batch_size": 8, "use_prefetcher": False, "num_workers": 0}
train = create_loader(sets["train"], is_training=True, auto_augment="rand-m3-n1", re_prob=0.2, **size)
val = create_loader(sets["val"], **size)
model = timm.create_model("resnet10t", num_classes=3, drop_path_rate=0.1).double()
mixup = Mixup(mixup_alpha=0.4, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=3)
ema, criterion = ModelEmaV3(model, decay=0.9), SoftTargetCrossEntropy()
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
schedule = CosineLRScheduler(optimizer, t_initial=2, warmup_t=1, warmup_lr_init=1e-4)
os.makedirs("output")
saver = CheckpointSaver(model, optimizer, model_ema=ema, checkpoint_dir="output", max_history=1)
for epoch in range(2):
    model.train()
    schedule.step(epoch)
    for x, y in train:
        x, y = mixup(x.double(), y)
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update(model)
    model.eval()
    top1 = AverageMeter()
    with torch.no_grad():
        for x, y in val:
            top1.update(accuracy(ema.module(x.double()), y)[0].item(), len(y))
    print(epoch, loss.item(), top1.avg, optimizer.param_groups[0]["lr"])
    update_summary(epoch, {"loss": loss.item()}, {"top1": top1.avg}, "output/summary.csv", epoch == 0)
    saver.save_checkpoint(epoch, metric=top1.avg)
