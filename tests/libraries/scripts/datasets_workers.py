"""A data set that two processes prepare with datasets' map(num_proc=2), and a regression on it."""

import torch
from datasets import Dataset, load_from_disk
from torch.utils.data import DataLoader

Dataset.from_dict({"n": list(range(60))}).save_to_disk("numbers")
numbers = load_from_disk("numbers")


def features(row):
    x = row["n"] / 30 - 1
    return {"x": [x, x**2, x**3], "y": 2 * x**3 - x}


numbers = numbers.map(features, num_proc=2)
numbers = numbers.filter(lambda row: row["n"] % 10 != 3, num_proc=2)
numbers.save_to_disk("prepared")
numbers = numbers.with_format("torch", columns=["x", "y"], dtype=torch.float64)
print(numbers, numbers[7])
torch.manual_seed(0)
model = torch.nn.Linear(3, 1).double()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(2):
    for batch in DataLoader(numbers, batch_size=8, shuffle=True):
        loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"][:, None])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
