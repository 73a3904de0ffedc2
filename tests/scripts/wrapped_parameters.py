"""A parameter of a class that holds its numbers in another tensor, as quantized ones do."""

import torch
from torch import nn
from torch.utils._pytree import tree_map

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
aten = torch.ops.aten
WRAPPED = {aten.detach.default, aten.t.default, aten.clone.default}


class Wrapped(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args_, kwargs_ = tree_map(
            lambda x: x.inner if isinstance(x, Wrapped) else x, (args, kwargs or {})
        )
        out = func(*args_, **kwargs_)
        if func in WRAPPED:
            return Wrapped(out)
        return args[0] if func._schema.name.endswith("_") else out


weight = nn.Parameter(Wrapped(torch.randn(3, 4)))
optimizer = torch.optim.SGD([weight], 0.1)
for x in torch.randn(8, 12, 4):
    optimizer.zero_grad()
    loss = (x @ weight.t()).square().mean()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.12f} {weight.inner.sum().item():.12f}")
