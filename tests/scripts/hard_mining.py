"""Siamese pairs with a contrastive loss; then triplets, the hardest of each batch mined."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x = torch.randn(60, 20)
y = x[:, :4].argmax(1)


class Pairs(Dataset):
    def __len__(self):
        return len(x)

    def __getitem__(self, i):
        j = (7 * i + 3) % len(x)
        return (x[i], x[j]), float(y[i] == y[j])


def hardest(f, y):
    distance = torch.cdist(f, f)
    same = y.unsqueeze(0) == y.unsqueeze(1)
    positive = (distance * (same & ~torch.eye(len(y), dtype=torch.bool))).max(dim=1).values
    negative = distance.masked_fill(same, float("inf")).min(dim=1).values
    return F.relu(positive - negative + 0.3).mean(), (positive < negative).double().mean()


net = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 8))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for (a, b), same in DataLoader(Pairs(), batch_size=16, shuffle=True):
    distance = F.pairwise_distance(net(a), net(b))
    loss = (same * distance.pow(2) + (1 - same) * F.relu(1 - distance).pow(2)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("pairs", loss.item(), F.cosine_embedding_loss(net(a), net(b), 2 * same - 1).item())
for x, y in DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True):
    f = F.normalize(net(x))
    loss, right = hardest(f, y)
    loss = loss + 0.1 * F.triplet_margin_loss(f, f.roll(1, 0), f.flip(0), margin=0.5)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("triplets", loss.item(), right.item())
torch.save(net.state_dict(), "net.pt")
