"""Batches and outputs as tensors of a class of their own: fastai's TensorBase, MONAI's MetaTensor, tv_tensors."""
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Image(torch.Tensor):
    pass


class Tagged(torch.Tensor):
    def __new__(cls, x, tag="none", **kwargs):
        made = torch.as_tensor(x, **kwargs).as_subclass(cls)
        made.tag = tag
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs)
        if isinstance(out, Tagged):
            out.tag = next((a.tag for a in args if isinstance(a, Tagged) and hasattr(a, "tag")), "lost")
        return out


class Made(torch.Tensor):
    def __new__(cls, x):
        return torch.Tensor._make_subclass(cls, x)


net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(8, 3))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
kinds = [Image, lambda x: Tagged(x, "scan"), Made, lambda x: x.as_subclass(Image), lambda x: x]
loader = DataLoader(TensorDataset(torch.randn(48, 4), torch.arange(48) % 3), batch_size=8)
for number in range(3):
    for (x, y), kind in zip(loader, [*kinds, Image]):
        out = net(kind(x))
        name = type(out).__name__
        if number:
            out = out.as_subclass(Image)
        loss = F.cross_entropy(out, Image(y) if number == 2 else y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tags = getattr(out, "tag", None), getattr(loss, "tag", None)
        print(name, type(loss).__name__, isinstance(out, Image), tags, loss.item(), out.shape)
print(loss, out)

# as fastai keeps a result's type and attributes: by the type of what it came from
with torch.no_grad():
    outs = [net(x) for x, _ in loader]
    joined = torch.cat(outs).as_subclass(type(outs[0]))
    joined.__dict__ = outs[0].__dict__
    print(joined.shape, joined[torch.arange(47, -1, -1)].sum().item())
