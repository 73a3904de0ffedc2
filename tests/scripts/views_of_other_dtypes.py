"""Parameters that are read and written through views of another dtype, conjugated or not."""

import copy
import io

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Filter(nn.Module):
    """Filters of a spectrum, as of Fourier operators, whose weights are pairs of numbers."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.randn(3))
        self.pairs = nn.Parameter(0.1 * torch.randn(4, 3, 2))
        self.odd = nn.Parameter(torch.randn(5))
        self.more = nn.Parameter(torch.randn(4, 2))
        self.complex = nn.Linear(3, 3, dtype=torch.cdouble)

    def forward(self, x):
        weight, more = torch.view_as_complex(self.pairs), torch.view_as_complex(self.more)
        y = torch.fft.fft(x, dim=1)[:, :, None] * weight
        z = more.conj() * y.sum(-1) + torch.view_as_complex(self.more).conj().imag
        inner = self.complex(y) @ self.complex.weight.conj()
        return z.abs() + self.shift.sum() + self.odd.sum() + inner.abs().sum(-1)


x = torch.randn(8, 4)
for kind in (torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop):
    net = Filter()
    optimizer = kind(net.parameters(), 1e-2)
    for _ in range(4):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.11f}")
    with torch.no_grad():
        torch.view_as_complex(net.pairs).mul_(2j)
        torch.view_as_real(net.complex.bias)[..., 1] = 0.5
        net.more.view(torch.int32)[..., ::2] = 0  # half of the bits of each
        net.odd[1:].view(torch.int64)[0] = 0
    print(f"{net(x).sum().item():.11f}", net.complex.bias.tolist(), net.more.sum(0).tolist())
    view = net.complex.weight.detach().conj()
    buffer = io.BytesIO()
    torch.save(view, buffer)
    buffer.seek(0)
    print([f"{v.sum().item():.10f}" for v in (torch.load(buffer), copy.deepcopy(view), view.imag)])
print(torch.view_as_complex(net.pairs).storage_offset(), net.pairs.storage_offset())
