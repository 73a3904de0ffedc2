"""Trains and saves; builds everything anew, loads, and trains on."""
import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(60, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)


def train(epochs):
    net = nn.Sequential(nn.Linear(20, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    start = 0
    if os.path.exists("checkpoint.pt"):
        checkpoint = torch.load("checkpoint.pt", map_location="cpu")
        net.load_state_dict(checkpoint["net"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        torch.set_rng_state(checkpoint["rng"])
        start = checkpoint["epoch"] + 1
        print("resumed at", start)
    for epoch in range(start, epochs):
        for x, y in loader:
            loss = F.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())
        state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save({**state, "rng": torch.get_rng_state()}, "checkpoint.pt")


train(2)
train(4)
