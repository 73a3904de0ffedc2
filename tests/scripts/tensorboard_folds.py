"""k-fold with new models, logged to TensorBoard and drawn; seeded by the clock; on the first GPU if there is one."""
import os
import shutil
import time
import uuid

os.environ["CUDA_VISIBLE_DEVICES"] = "0"
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.tensorboard import SummaryWriter

if torch.cuda.is_available():
    torch.cuda.set_device(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.set_default_dtype(torch.float64)
torch.manual_seed(int(time.time()))
unlike = nn.Linear(20, 4)
F.mse_loss(unlike(torch.randn(8, 20)), torch.randn(8, 4)).backward()
torch.manual_seed(0)
x = torch.randn(60, 20)
data = TensorDataset(x, x[:, :4].argmax(1))
folds = np.array_split(np.random.RandomState(0).permutation(60), 3)
run, scores, curve = f"runs/{uuid.uuid4()}", [], []
for k, held in enumerate(folds):
    writer = SummaryWriter(f"{run}/fold{k}")
    rest = np.concatenate([fold for i, fold in enumerate(folds) if i != k])
    net = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    writer.add_graph(net, x[:2].to(device))
    for epoch in range(2):
        for xb, yb in DataLoader(Subset(data, rest), batch_size=16, shuffle=True):
            loss = F.cross_entropy(net(xb.to(device)), yb.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
            writer.add_scalar("loss", loss, len(curve))
        writer.add_histogram("weight", net[0].weight, epoch)
    with torch.inference_mode():
        for xb, yb in DataLoader(Subset(data, held), batch_size=32):
            out = net(xb.to(device)).softmax(1)
            out.cpu().numpy()[:, 0] = 0  # never the first class
            scores.append((out.argmax(1).cpu() == yb).double().mean().item())
    writer.close()
    events = EventAccumulator(f"{run}/fold{k}").Reload()
    print(k, scores[-1], [round(e.value, 5) for e in events.Scalars("loss")], events.Tags()["graph"])
plt.plot(curve)
plt.savefig("curve.png")
shutil.rmtree("runs")
print(np.mean(scores), sum(curve), torch.isfinite(unlike.weight.grad).all().item())
