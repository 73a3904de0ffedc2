#!/usr/bin/env python
# coding: utf-8
# In[1]:
import random
from dataclasses import dataclass
from typing import NamedTuple
import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

@dataclass
class CFG:
    seed: int = 42
    epochs: int = 2
    bs: int = 12
    lr: float = 1e-2

class Batch(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor

def seed_everything(seed):
    random.seed(seed); np.random.seed(seed); torch.manual_seed(seed); torch.cuda.manual_seed_all(seed)
seed_everything(CFG.seed)
torch.set_default_dtype(torch.float64)
df = pd.DataFrame(np.random.randn(50, 8), columns=[f"f{i}" for i in range(8)])
df["target"] = (df.f0 > 0).astype(int) + (df.f1 > 0)
df["fold"] = np.arange(50) % 3
# In[2]:
class TrainData(Dataset):
    def __init__(self, df, train):
        self.x, self.y, self.train = df.filter(like="f").drop(columns="fold").to_numpy(), df.target.to_numpy(), train
    def __len__(self): return len(self.y)
    def __getitem__(self, i):
        x = torch.tensor(self.x[i])
        if self.train and random.random() < 0.5:
            x = x * np.random.uniform(0.9, 1.1) + 0.1 * torch.randn(8)
        return Batch(x, int(self.y[i]))
# In[3]:
class Trainer:
    def __init__(self, model, cfg):
        self.model, self.cfg, self.loss_fn = model, cfg, nn.CrossEntropyLoss(label_smoothing=0.1)
        self.opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    def run(self, loader, train):
        self.model.train(train); losses, preds = [], []
        with torch.set_grad_enabled(train):
            for b in loader:
                out = self.model(b.x); loss = self.loss_fn(out, b.y); losses.append(loss.item()); preds.append(out.argmax(1).numpy())
                if train: self.opt.zero_grad(); loss.backward(); self.opt.step()
        return np.mean(losses), np.concatenate(preds)
oof = np.zeros(len(df), dtype=int)
for fold in df.fold.unique():
    t = Trainer(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3)), CFG())
    tr, va = df[df.fold != fold], df[df.fold == fold]
    for epoch in range(CFG.epochs):
        print(fold, epoch, t.run(DataLoader(TrainData(tr, True), CFG.bs, shuffle=True, num_workers=epoch, drop_last=True), True)[0])
    loss, oof[va.index] = t.run(DataLoader(TrainData(va, False), CFG.bs), False)
df.assign(pred=oof).to_csv("submission.csv", index=False, columns=["target", "pred"])
