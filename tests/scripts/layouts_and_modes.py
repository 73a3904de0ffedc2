"""channels_last, inference_mode, default dtype and device, autocast in float16's place, requires_grad of inputs."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_device("cpu")
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(40, 3, 8, 8)
loader = DataLoader(TensorDataset(x, x.mean((2, 3)).argmax(1)), batch_size=12, shuffle=True, generator=torch.Generator("cpu"))
net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
net = net.to(memory_format=torch.channels_last)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, foreach=True)
for epoch in range(2):
    net.train()
    for x, y in loader:
        x = x.to("cpu", memory_format=torch.channels_last, non_blocking=True)
        features = net[:4](x)
        out = net[4:](features)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        print(loss.item(), x.stride(), features.stride(), features.is_contiguous(memory_format=torch.channels_last))
    net.eval()
    right = total = 0
    with torch.inference_mode():
        for x, y in loader:
            out = net(x.contiguous(memory_format=torch.channels_last))
            right += (out.argmax(1) == y).sum().item()
            total += F.cross_entropy(out, y, reduction="sum")
            kept = out.softmax(1)
    print(right / len(loader.dataset), total.item(), kept.is_inference(), kept[0].tolist())
with torch.device("cpu"):
    late = nn.Linear(3, 2)
print(late(kept.clone()).sum().item())
torch.save([net.state_dict(), optimizer.state_dict()], "net.pt")
