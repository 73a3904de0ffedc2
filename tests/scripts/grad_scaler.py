"""GradScaler switched off because there is no GPU: scale, unscale_, clip, step, update."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
use_amp = torch.cuda.is_available()

x = torch.randn(60, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
net = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
for x, y in loader:
    with torch.autocast("cuda" if use_amp else "cpu", enabled=use_amp):
        loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(net.parameters(), 0.3)
    scaler.step(optimizer)
    scaler.update()
    print(loss.item(), norm.item(), scaler.get_scale())
torch.save({"net": net.state_dict(), "scaler": scaler.state_dict()}, "net.pt")
