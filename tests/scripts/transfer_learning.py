"""The transfer learning tutorial's loop: two phases, loss * size(0), corrects / len(dataset), best weights."""
import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


def blobs(n):
    x = torch.randn(n, 20)
    return TensorDataset(x, x[:, :4].argmax(1))


datasets = {"train": blobs(103), "val": blobs(51)}
dataloaders = {p: DataLoader(d, batch_size=16, shuffle=p == "train") for p, d in datasets.items()}
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
best_acc, best = 0.0, None
for epoch in range(3):
    for phase in ["train", "val"]:
        model.train(phase == "train")
        running_loss, running_corrects = 0.0, 0
        for inputs, labels in dataloaders[phase]:
            optimizer.zero_grad()
            with torch.set_grad_enabled(phase == "train"):
                outputs = model(inputs)
                _, preds = torch.max(outputs, 1)
                loss = criterion(outputs, labels)
                if phase == "train":
                    loss.backward()
                    optimizer.step()
            running_loss += loss.item() * inputs.size(0)
            running_corrects += torch.sum(preds == labels.data)
        epoch_loss, epoch_acc = running_loss / len(datasets[phase]), running_corrects.double() / len(datasets[phase])
        print(epoch, phase, epoch_loss, epoch_acc.item())
    scheduler.step(epoch_loss)
    if epoch_acc > best_acc:
        best_acc, best = epoch_acc, copy.deepcopy(model.state_dict())
model.load_state_dict(best)
torch.save(model.state_dict(), "best.pt")
