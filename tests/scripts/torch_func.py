"""torch.func: per-sample gradients by vmap over grad of functional_call, and a jacobian."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, jacrev, vmap
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(40, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=9, shuffle=True)
net = nn.Sequential(nn.Linear(20, 8), nn.Tanh(), nn.Linear(8, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def loss_of_one(params, x, y):
    return F.cross_entropy(functional_call(net, params, (x.unsqueeze(0),)), y.unsqueeze(0))


for x, y in loader:
    params = {name: p.detach() for name, p in net.named_parameters()}
    per_sample = vmap(grad(loss_of_one), in_dims=(None, 0, 0))(params, x, y)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in per_sample.values()]).norm(dim=0)
    scale = (1.0 / norms).clamp(max=1.0)
    for name, p in net.named_parameters():
        p.grad = torch.einsum("b,b...->...", scale, per_sample[name]) / len(x)
    optimizer.step()
    loss = F.cross_entropy(functional_call(net, dict(net.named_parameters()), (x,)), y)
    print(loss.item(), norms.max().item(), vmap(jacrev(net))(x).abs().mean().item())
torch.save(net.state_dict(), "net.pt")
