"""Opacus: a private training, with gradients of each sample that are clipped and made noisy."""

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
x, y = torch.tensor(digits.images[:200])[:, None] / 16, torch.tensor(digits.target[:200])
loader = DataLoader(TensorDataset(x[:160], y[:160]), batch_size=32)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    nn.Linear(128, 10),
).double()  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
engine = PrivacyEngine(accountant="rdp")
model, optimizer, private = engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.1, max_grad_norm=1.0
)
for epoch in range(2):
    for a, b in private:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
        print(f"{epoch} rows {len(a)} loss {loss.item():.10f}")
    print(f"epsilon {engine.get_epsilon(delta=1e-3):.8f}")
with BatchMemoryManager(
    data_loader=private, max_physical_batch_size=16, optimizer=optimizer
) as small:
    for a, b in small:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
        print(f"rows {len(a)} loss {loss.item():.10f}")
model.eval()
with torch.no_grad():
    print("accuracy", (model(x[160:]).argmax(1) == y[160:]).double().mean().item())
engine.save_checkpoint(path="private.pt", module=model, optimizer=optimizer)
