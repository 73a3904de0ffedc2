#!/usr/bin/env python
# coding: utf-8
# # A notebook that was exported as a script
# In[1]:

import os
os.environ["CUDA_VISIBLE_DEVICES"] = "0"
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm
try:
    get_ipython().run_line_magic('matplotlib', 'inline')
except NameError:
    pass
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
device

# In[2]:

torch.set_default_dtype(torch.float64)
SEED = 42
torch.manual_seed(SEED); torch.cuda.manual_seed_all(SEED)
x = torch.randn(60, 20); y = x[:, :4].argmax(1)
train_dl = DataLoader(TensorDataset(x[:45], y[:45]), 16, shuffle=True, pin_memory=torch.cuda.is_available())
valid_dl = DataLoader(TensorDataset(x[45:], y[45:]), 32)
x.shape, y.shape

# In[3]:

model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
model

# In[4]:

optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
history = {"loss": [], "acc": []}
best = 0
for epoch in range(3):
    model.train()
    running = 0
    for xb, yb in (pbar := tqdm(train_dl, ncols=80)):
        xb, yb = xb.to(device), yb.to(device)
        loss = F.cross_entropy(model(xb), yb)
        loss.backward(); optimizer.step(); optimizer.zero_grad()
        running += loss.item() * xb.size(0)
        pbar.set_description(f"loss {loss.item():.3f}")
    model.eval()
    with torch.no_grad():
        acc = torch.cat([model(xb.to(device)).argmax(1).cpu() == yb for xb, yb in valid_dl]).float().mean().item()
    history["loss"].append(running / len(train_dl.dataset)); history["acc"].append(acc)
    if acc >= best:
        best = acc; torch.save(model.state_dict(), "best.pth")
print(history)

# In[5]:

model.load_state_dict(torch.load("best.pth", map_location=device, weights_only=True))
model(x[:2].to(device))
