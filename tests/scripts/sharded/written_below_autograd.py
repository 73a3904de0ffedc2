"""Functions that write into several parameters at once: of torch.jit, with `out=`, lists, views."""

import warnings

import torch
from torch import Tensor, nn

warnings.simplefilter("ignore")  # of newer versions, about torch.jit
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(5, 5) for _ in range(3))).to("cpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def exchange(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    kept = b.clone()
    b.copy_(c * 2)
    c.copy_(kept @ a)
    return a.add_(1)


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b, c):
        exchange(a, b, c)
        ctx.mark_dirty(a, b, c)
        return a, b, c


def shown(what):
    print(what, [p.detach().square().mean().item() for p in model.parameters()])
    with torch.no_grad():
        for p in model.parameters():
            p.div_(p.norm())


a, b, c = (p for p in model.parameters() if p.dim() > 1)
with torch.no_grad():
    print(torch.jit.script(exchange)(a, b, c) is a)
    shown("by torch.jit")
    print([x.sum().item() for x in Exchange.apply(a, b, c)])
    shown("all are returned")
    torch.linalg.qr(a.clone(), out=(b, c))
    shown("two are results")
    torch._foreach_lerp_([a, c.T], [b.clone(), a.T.clone()], 0.3)
    shown("lists")
    a.T[1], b[:, 2], c.data[3] = c[0], a[1].clone(), b.T[4] + 1
    shown("views")
x = torch.randn(12, 5)
for (rows,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=4):
    optimizer.zero_grad()
    model(rows).square().mean().backward()
    with torch.no_grad():
        print(torch.jit.script(exchange)(*(p.grad for p in (c, a, b))).norm().item())
    optimizer.step()
    shown("gradients")
