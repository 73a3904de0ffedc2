"""A model with a `state_dict` of its own, hooks of it, and an optimizer of a part of the model."""

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen, self.head = nn.Linear(6, 9).requires_grad_(False), nn.Linear(9, 3)
        self.register_buffer("steps", torch.zeros(()), persistent=False)

    def forward(self, x):
        self.steps += 1
        return self.head(self.frozen(x).tanh())

    def state_dict(self, *args, **kwargs):
        kept = super().state_dict(*args, **kwargs)
        trained = {k: v.cpu() for k, v in kept.items() if k.startswith("head")}
        return {"steps": self.steps.item(), "weights": trained, "norm": trained["head.weight"].norm()}

    def load_state_dict(self, state, strict=True):
        self.steps.fill_(state["steps"])
        return super().load_state_dict(state["weights"], strict=False)


class Renamed(nn.Linear):
    def _save_to_state_dict(self, destination, prefix, keep_vars):
        destination[prefix + "kernel"] = self.weight.detach().T
        destination[prefix + "kept"] = self.bias if keep_vars else self.bias.data

    def _load_from_state_dict(self, state, prefix, *args):
        with torch.no_grad():
            self.weight.copy_(state[prefix + "kernel"].T)
            self.bias.copy_(state[prefix + "kept"])


x, y = torch.randn(24, 6), torch.randn(24, 3)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)
for kind in (Model, lambda: Renamed(6, 3)):
    model = kind().to("cpu")
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=0.05)
    for a, b in loader:
        optimizer.zero_grad()
        (model(a) - b).square().mean().backward()
        optimizer.step()
    torch.save(model.state_dict(), "own.pt")
    other = kind().to("cpu")
    print(other(x).sum().item(), other.load_state_dict(torch.load("own.pt")))
    print(other(x).sum().item(), model(x).sum().item(), model.state_dict())
    print(len(optimizer.param_groups[0]["params"]), len(optimizer.state))
print(model.state_dict(keep_vars=True)["kept"].requires_grad)
