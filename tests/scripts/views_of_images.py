"""Views of images, joined along the batch: two for a contrastive loss, crops of two sizes for a teacher's."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
images = torch.randn(22, 3, 8, 8)


class Views(Dataset):
    def __len__(self):
        return len(images)

    def __getitem__(self, i):
        noise = torch.Generator().manual_seed(i)
        views = [images[i] + 0.1 * torch.randn(3, 8, 8, generator=noise) for _ in range(2)]
        return views + [views[k % 2][:, k : k + 4, :4] for k in range(4)]


class Crops(nn.Module):
    """A call for each size of crops, as of DINO."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.head = nn.Linear(6, 5)

    def forward(self, crops):
        sizes = torch.tensor([x.shape[-1] for x in crops])
        ends = torch.cumsum(torch.unique_consecutive(sizes, return_counts=True)[1], 0)
        start, out = 0, torch.empty(0)
        for end in ends:
            out = torch.cat((out, self.body(torch.cat(crops[start:end]))))
            start = end
        return self.head(out)


net, teacher = Crops(), Crops()
teacher.load_state_dict(net.state_dict())
optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
for epoch in range(2):
    for crops in DataLoader(Views(), 6, shuffle=True):
        with torch.no_grad():
            targets = teacher(crops[:2]).softmax(-1).chunk(2)
        outs = net(crops).log_softmax(-1).chunk(len(crops))
        loss = -sum((t * o).sum(-1).mean() for t in targets for o in outs)
        both = F.normalize(net.head(net.body(torch.cat(crops[:2], dim=0))), dim=1)
        first, second = torch.split(both, [len(crops[0])] * 2, dim=0)
        logits = first @ second.T / 0.5
        loss = loss + F.cross_entropy(logits, torch.arange(len(logits)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())
torch.save(net.state_dict(), "net.pt")
