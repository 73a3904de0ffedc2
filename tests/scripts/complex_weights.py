"""Complex parameters, a spectral layer over fft, magnitudes, einsum and complex losses."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Spectral(nn.Module):
    def __init__(self, channels, modes):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(channels, channels, modes, dtype=torch.cfloat).to(torch.cdouble) * 0.2)
        self.mix = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        spectrum = torch.fft.rfft(x)
        out = torch.zeros(len(x), x.size(1), x.size(2) // 2 + 1, dtype=torch.cdouble)
        out[:, :, : self.modes] = torch.einsum("bix,iox->box", spectrum[:, :, : self.modes], self.weight)
        return torch.relu(torch.fft.irfft(out, n=x.size(-1)) + self.mix(x))


t = torch.linspace(0, 6, 16)
phase = torch.rand(50, 1, 1)
signal = torch.sin(t + 6 * phase) * torch.ones(50, 3, 1)
loader = DataLoader(TensorDataset(signal, signal.roll(2, -1)), batch_size=12, shuffle=True)
net = Spectral(3, 5)
rotation = nn.Parameter(torch.ones(3, dtype=torch.cdouble) * 1j)
optimizer = torch.optim.Adam([*net.parameters(), rotation], lr=1e-2)
for x, y in loader:
    out = net(x)
    turned = (out + 0j) * rotation[:, None]
    away = torch.view_as_real(turned - y).pow(2).mean()
    loss = away + (turned.abs() - y.abs()).pow(2).mean() + (turned.angle().cos().mean() - 1) ** 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), torch.view_as_real(rotation.grad).tolist(), turned.real.std().item(), abs(turned.mean().item()))
torch.save([net.state_dict(), rotation], "net.pt")
