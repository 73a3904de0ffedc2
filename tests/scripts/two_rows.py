"""Batches of two rows, of one, and of three: fewer rows than processors, or one for each, in layers of all kinds."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.group = nn.GroupNorm(2, 4)
        self.attend = nn.TransformerEncoderLayer(4, 2, 8, 0.1, batch_first=True)
        self.read = nn.GRU(4, 6, batch_first=True)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(10, 3)

    def forward(self, x):
        h = F.relu(self.group(self.norm(self.conv(x))))
        pooled = F.max_pool2d(h, 2)
        tokens = self.attend(pooled.flatten(2).transpose(1, 2))
        _, last = self.read(tokens)
        joined = torch.cat([last[0], tokens.mean(1)], 1)
        joined = joined - joined.mean(0) / 2
        if len(x) % 2:
            joined = joined * 1.5
        return self.head(self.drop(joined))


net = Mixed()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
for size in (2, 1, 3):
    x, y = torch.randn(3 * size + 1, 1, 4, 4), torch.randint(3, (3 * size + 1,))
    for a, b in DataLoader(TensorDataset(x, y), batch_size=size, shuffle=True):
        out = net(a)
        loss = F.cross_entropy(out, b, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right = (out.argmax(1) == b).sum().item()
        print(len(a), f"{loss.item():.12f}", right, f"{out.std().item() if len(a) > 1 else 0:.9f}")
print(f"{sum(p.abs().sum().item() for p in net.parameters()):.12f}", f"{torch.rand(1).item():.12f}")
torch.save(net.state_dict(), "net.pt")
