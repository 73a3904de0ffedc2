"""Forward-mode derivatives of a batch that was read in other ways before."""

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, jvp, linearize
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.05)
for (x,) in DataLoader(TensorDataset(torch.randn(16, 6)), 8):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(net(forward_ad.make_dual(x, torch.ones_like(x))))
        print(f"{found.primal.sum().item():.11f} {found.tangent.sum().item():.11f}")
    parameters = dict(net.named_parameters())
    tangents = {name: torch.ones_like(p) for name, p in parameters.items()}
    for given in (x, x.clone(), torch.ones(4, 6)):
        pair = jvp(lambda p, given=given: functional_call(net, p, (given,)), (parameters,), (tangents,))
        print([f"{value.sum().item():.11f}" for value in pair])
        out, derivative = jvp(net, (given,), (torch.ones_like(given),))
        print(f"{(out * derivative).sum().item():.11f}")
    out, derive = linearize(net, torch.ones(3, 6))
    print(f"{out.sum().item():.11f} {derive(torch.ones(3, 6)).sum().item():.11f}")
print([f"{p.sum().item():.11f}" for p in net.parameters()])
