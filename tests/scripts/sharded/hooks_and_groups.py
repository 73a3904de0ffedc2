"""Hooks before and after, accumulation, frozen weights with LoRA, groups that are added later."""

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x, y = torch.randn(32, 6), torch.randn(32, 3)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)


class Lora(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, base.in_features) * 0.1)
        self.up = nn.Parameter(torch.randn(base.out_features, 2) * 0.1)

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T

    def merge(self, sign=1):
        self.base.weight.data += sign * (self.up @ self.down).detach()


seen, later = [], []
model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
weight, bias = model[0].parameters()
weight.register_hook(lambda g: seen.append(g.norm().item()))
bias.register_hook(lambda g: g * 2)
model.to("cpu")
optimizer = torch.optim.AdamW([{"params": [weight], "lr": 0.1}, {"params": [bias]}], lr=0.05)
weight.register_hook(lambda g: g.clamp(-0.01, 0.01))
bias.register_post_accumulate_grad_hook(lambda p: later.append((p.grad.sum().item(), p is bias)))
for step, (a, b) in enumerate(loader):
    if step == 1:
        optimizer.add_param_group({"params": model[2].parameters(), "weight_decay": 0.1})
    if step == 2:
        model[0] = Lora(model[0])
        optimizer.add_param_group({"params": [model[0].up, model[0].down]})
        handle.remove()
    handle = model.register_full_backward_hook(lambda *_: later.append("backward"))
    (model(a) - b).square().mean().backward()
    print([None if p.grad is None else p.grad.norm().item() for p in model.parameters()])
    if step % 2:
        optimizer.step()
        optimizer.zero_grad(set_to_none=step == 1)
before = model(x)
model[0].merge()
merged = nn.functional.linear(x, model[0].base.weight, model[0].base.bias)
print((model[2](merged.tanh()) - before).abs().max().item() < 1e-12, before.sum().item())
model[0].merge(-1)
print((model(x) - before).abs().max().item() < 1e-12, seen, later)
print([(n, p.requires_grad, p.grad is None) for n, p in model.named_parameters()])
