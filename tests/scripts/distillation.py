"""A student learns from a teacher in eval: temperature, feature hints by hooks, a projection."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(60, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
teacher = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 4))
teacher.eval().requires_grad_(False)
student = nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 4))
project = nn.Linear(8, 32)
hints = {}
for name, net in (("teacher", teacher), ("student", student)):
    net[2].register_forward_hook(lambda module, inputs, output, name=name: hints.__setitem__(name, output))
optimizer = torch.optim.SGD([*student.parameters(), *project.parameters()], lr=0.1, momentum=0.9, nesterov=True)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, epochs=2, steps_per_epoch=len(loader))
for epoch in range(2):
    student.train()
    for x, y in loader:
        with torch.no_grad():
            soft = teacher(x)
        logits = student(x)
        match = F.kl_div(F.log_softmax(logits / 2, 1), F.softmax(soft / 2, 1), reduction="batchmean") * 4
        loss = F.cross_entropy(logits, y) + match + F.mse_loss(project(hints["student"]), hints["teacher"])
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(student.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        print(loss.item(), norm.item(), schedule.get_last_lr())
    student.eval()
    with torch.no_grad():
        agree = sum((student(x).argmax(1) == teacher(x).argmax(1)).sum().item() for x, _ in loader)
    print("agree", agree / len(loader.dataset))
torch.save(student.state_dict(), "student.pt")
