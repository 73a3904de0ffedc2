"""Detection: targets are dicts of variable length, collated as lists; the model takes both, and answers by mode."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Boxes(Dataset):
    def __init__(self):
        self.images = torch.randn(26, 3, 12, 12)
        self.boxes = [torch.rand(1 + i % 3, 4) for i in range(26)]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        boxes = self.boxes[i]
        return self.images[i], {"boxes": boxes, "labels": torch.arange(len(boxes)) % 4, "image_id": i}


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.box, self.label = nn.Linear(32, 12), nn.Linear(32, 12)

    def forward(self, images, targets=None):
        features = self.body(torch.stack(images)).flatten(1)
        boxes, logits = self.box(features).view(-1, 3, 4), self.label(features).view(-1, 3, 4)
        if not self.training:
            return [{"boxes": b, "scores": s.softmax(1)} for b, s in zip(boxes, logits)]
        pairs = [(boxes[i, k], t["boxes"][k], logits[i, k], t["labels"][k]) for i, t in enumerate(targets) for k in range(len(t["labels"]))]
        b, wanted, s, label = (torch.stack(p) for p in zip(*pairs))
        return {"loss_box": F.smooth_l1_loss(b, wanted), "loss_label": F.cross_entropy(s, label)}


loader = DataLoader(Boxes(), batch_size=8, shuffle=True, collate_fn=lambda batch: tuple(zip(*batch)))
net = Detector()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
for images, targets in loader:
    images = list(image.to("cpu") for image in images)
    targets = [{k: v.to("cpu") if isinstance(v, torch.Tensor) else v for k, v in t.items()} for t in targets]
    losses = net(images, targets)
    loss = sum(losses.values())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print({k: v.item() for k, v in losses.items()}, [t["image_id"] for t in targets])
net.eval()
with torch.no_grad():
    print([out["scores"].max().item() for images, _ in loader for out in net(images)])
torch.save(net.state_dict(), "net.pt")
