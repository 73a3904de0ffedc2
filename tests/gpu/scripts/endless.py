"""Trains until it is ended."""

import torch

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
net = torch.nn.Linear(256, 256).to(device)
opt = torch.optim.SGD(net.parameters(), 0.001)
x = torch.randn(64, 256)
step = 0
while True:
    step += 1
    loss = net(x.to(device)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step == 20:
        print("trains", flush=True)
