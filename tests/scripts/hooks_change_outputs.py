"""Hooks of one module and of all change inputs, keywords and outputs, keep features, and come and go."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Scaled(nn.Module):
    def forward(self, x, scale=1.0):
        return x * scale


def by_size(module, args, out):
    return out * out.shape[0] / 10 if isinstance(module, nn.Linear) else None


def by_spread(module, args, kwargs):
    return args, {"scale": args[0].std()}


x, y = torch.randn(128, 6), torch.randint(3, (128,))
net = nn.Sequential(nn.Linear(6, 8), Scaled(), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
seen, features = [], {}
handles = [net[2].register_forward_hook(lambda m, args, out: features.update(relu=out.detach()))]
for step, (a, b) in enumerate(DataLoader(TensorDataset(x, y), batch_size=16)):
    if step == 1:
        handles.append(net[0].register_forward_hook(lambda m, args, out: out - out.mean(0)))
    if step == 2:
        handles.append(net[2].register_forward_pre_hook(lambda m, args: (args[0].cumsum(0) / 4,)))
    if step == 3:
        handles.pop(1).remove()
        handles.append(register_module_forward_hook(by_size))
    if step == 4:
        handles.append(register_module_forward_pre_hook(lambda m, args: seen.append(args[0].sum().item())))
    if step == 5:
        handles.append(net[1].register_forward_pre_hook(by_spread, with_kwargs=True))
    if step == 6:
        handles.append(net[1].register_full_backward_hook(lambda m, into, out: (into[0] - into[0].mean(0),)))
    optimizer.zero_grad()
    loss = F.cross_entropy(net(a), b)
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.12f}", len(seen), f"{sum(seen):.9f}", features["relu"].shape, features["relu"][0].tolist())
for handle in handles:
    handle.remove()
print(f"{sum(p.abs().sum().item() for p in net.parameters()):.12f}")
torch.save({"net": net.state_dict(), "features": features}, "net.pt")
