"""The decorator, in a script that asks for CUDA at its top, as nearly all do."""

import sys

import torch

from autoddp import distributed

device = "cuda" if torch.cuda.is_available() else "cpu"


@distributed(nproc=int(sys.argv[1]))
def main():
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 1).double().to(device)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    x, y = torch.randn(32, 8).double(), torch.randn(32, 1).double()
    for _ in range(5):
        loss = (net(x.to(device)) - y.to(device)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(loss.item())


main()
