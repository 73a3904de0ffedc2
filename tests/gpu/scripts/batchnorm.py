"""A ResNet with BatchNorm, autocast, GradScaler, channels_last and cudnn.benchmark."""

import torch
import torchvision

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cudnn.benchmark = True
net = torchvision.models.resnet18(num_classes=10).to(device, memory_format=torch.channels_last)
opt = torch.optim.SGD(net.parameters(), 0.01)
scaler = torch.amp.GradScaler(device, enabled=device == "cuda")
x, y = torch.randn(64, 3, 64, 64), torch.randint(10, (64,))
for step in range(8):
    a, b = (
        x[step % 2 * 32 :][:32].to(device, memory_format=torch.channels_last),
        y[step % 2 * 32 :][:32].to(device),
    )
    with torch.autocast(device, torch.float16, enabled=device == "cuda"):
        loss = torch.nn.functional.cross_entropy(net(a), b)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    print(loss.item())
print(net.bn1.running_mean.double().sum().item(), net.layer4[0].bn2.running_var.double().sum().item())
