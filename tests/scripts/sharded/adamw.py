"""A small training with AdamW, whose optimizer and model are saved at the end."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1)).to("cpu")
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for (x,) in DataLoader(TensorDataset(torch.randn(64, 10)), 16, shuffle=True):
        loss = net(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        print(f"{loss.item():.12f} {norm.item():.12f}")
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")


if __name__ == "__main__":
    main()
