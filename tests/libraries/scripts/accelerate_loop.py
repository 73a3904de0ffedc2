"""A loop with Accelerate: accumulation, gather_for_metrics, checkpoints, resuming."""

import os

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset

set_seed(0)
project = ProjectConfiguration("project", automatic_checkpoint_naming=True, total_limit=2)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, project_config=project)
x = torch.randn(62, 8, dtype=torch.float64)
y = (x.sum(1) > 0).long()
model = torch.nn.Sequential(
    torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 2)
).double()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
train = DataLoader(TensorDataset(x[:44], y[:44]), batch_size=8, shuffle=True)
test = DataLoader(TensorDataset(x[44:], y[44:]), batch_size=8)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4)
model, optimizer, train, test, schedule = accelerator.prepare(model, optimizer, train, test, schedule)
for epoch in range(3):
    model.train()
    for a, b in train:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(a), b)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
    right = seen = 0
    for a, b in test:
        with torch.no_grad():
            guess = model(a).argmax(1)
        guess, b = accelerator.gather_for_metrics((guess, b))
        right, seen = right + (guess == b).sum().item(), seen + len(b)
    accelerator.print(epoch, loss.item(), right, seen, optimizer.param_groups[0]["lr"])
    accelerator.save_state()
accelerator.load_state("project/checkpoints/checkpoint_1")
accelerator.wait_for_everyone()
accelerator.save_model(model, "final")
print(accelerator.num_processes, [p.sum().item() for p in model.parameters()])
for folder, _, files in sorted(os.walk(".")):
    print(folder, sorted(files))
