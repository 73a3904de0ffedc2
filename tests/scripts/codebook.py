"""VQ-VAE: a codebook that follows by moving averages, changed in forward; dead codes are revived."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Codebook(nn.Module):
    def __init__(self, count, width, decay=0.9):
        super().__init__()
        self.count, self.decay = count, decay
        self.register_buffer("codes", torch.randn(count, width))
        self.register_buffer("used", torch.ones(count))
        self.register_buffer("sums", self.codes.clone())

    def forward(self, z):
        distance = z.pow(2).sum(1, keepdim=True) - 2 * z @ self.codes.t() + self.codes.pow(2).sum(1)
        chosen = distance.argmin(1)
        if self.training:
            hot = F.one_hot(chosen, self.count).to(z.dtype)
            with torch.no_grad():
                self.used.mul_(self.decay).add_(hot.sum(0), alpha=1 - self.decay)
                self.sums.mul_(self.decay).add_(hot.t() @ z, alpha=1 - self.decay)
                self.codes.copy_(self.sums / self.used.clamp(min=1e-3)[:, None])
                dead = self.used < 0.5
                if dead.any():
                    self.codes[dead] = z[torch.randperm(len(z))[: int(dead.sum())]].detach()
        quantized = self.codes[chosen]
        return z + (quantized - z).detach(), F.mse_loss(z, quantized.detach()), chosen


x = torch.randn(60, 20)
loader = DataLoader(TensorDataset(x), batch_size=16, shuffle=True)
net = nn.ModuleDict({"encoder": nn.Linear(20, 6), "codebook": Codebook(5, 6), "decoder": nn.Linear(6, 20)})
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for epoch in range(2):
    for (x,) in loader:
        z, commitment, chosen = net["codebook"](net["encoder"](x))
        loss = F.mse_loss(net["decoder"](z), x) + 0.25 * commitment
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item(), torch.bincount(chosen, minlength=5).tolist(), net["codebook"].used.tolist())
torch.save(net.state_dict(), "net.pt")
