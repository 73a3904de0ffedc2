"""A loop on Accelerate: accumulation, clipping, numbered checkpoints (two are kept), resuming."""

import os

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset

set_seed(0)
project = ProjectConfiguration("project", automatic_checkpoint_naming=True, total_limit=2)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, project_config=project)
x = torch.randn(30, 4, dtype=torch.float64)
model = torch.nn.Sequential(
    torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
).double()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for epoch in range(3):
    for a, b in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(a), b)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        targets = accelerator.gather_for_metrics(b)
        accelerator.print(epoch, loss.item(), targets.sum().item(), optimizer.param_groups[0]["lr"])
    accelerator.save_state()
accelerator.load_state("project/checkpoints/checkpoint_1")
accelerator.wait_for_everyone()
if accelerator.is_main_process:
    torch.save(accelerator.unwrap_model(model).state_dict(), "model.pt")
    print(accelerator.num_processes, [p.tolist() for p in model.parameters()])
    for folder, _, files in sorted(os.walk(".")):
        print(folder, sorted(files))
