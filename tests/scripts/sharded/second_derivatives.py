"""A GAN with a gradient penalty, Hessians, per-sample gradients, functional calls, penalties."""

import torch
from torch import nn
from torch.func import functional_call, grad, hessian, vmap

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
data = torch.randn(24, 4)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=8)
maker = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)).to("cpu")
critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to("cpu")
make_step = torch.optim.Adam(maker.parameters(), lr=0.02)
critic_step = torch.optim.Adam(critic.parameters(), lr=0.02)
for (real,) in loader:
    fake = maker(torch.randn(len(real), 3))
    mixed = real.lerp(fake.detach(), torch.rand(len(real), 1)).requires_grad_()
    (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    loss = critic(fake.detach()).mean() - critic(real).mean() + (slope.norm(dim=1) - 1).square().mean()
    critic_step.zero_grad()
    loss.backward()
    critic_step.step()
    make_step.zero_grad()
    (-critic(fake).mean()).backward()
    make_step.step()
    print(loss.item(), [p.norm().item() for p in (*maker.parameters(), *critic.parameters())])
    score = critic(real).square().mean()
    grads = torch.autograd.grad(score, [*critic.parameters()], create_graph=True)
    penalty = sum(g.square().sum() for g in grads)
    critic_step.zero_grad()
    (score + penalty).backward()
    critic_step.step()
    print(penalty.item(), [p.grad.norm().item() for p in critic.parameters()])


def one(parameters, x):
    return functional_call(critic, parameters, (x[None],)).square().sum()


named = dict(critic.named_parameters())
each = vmap(grad(one), in_dims=(None, 0))({k: v.detach() for k, v in named.items()}, data[:5])
print({k: v.flatten(1).norm(dim=1).tolist() for k, v in each.items()})
print(hessian(lambda w: one({**named, "2.weight": w}, data[0]))(critic[2].weight.detach()).sum())
moved = {k: v - 0.1 * g for (k, v), g in zip(named.items(), torch.autograd.grad(
    functional_call(critic, named, (data,)).square().mean(), [*named.values()], create_graph=True
))}  # fmt: skip
functional_call(critic, moved, (data,)).square().mean().backward()
print([p.grad.norm().item() for p in critic.parameters()])
