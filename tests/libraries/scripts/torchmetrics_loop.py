"""Metrics of torchmetrics in a loop: a collection, running means, and states that are saved."""

import torch
from sklearn.datasets import load_wine
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)
from torchmetrics.wrappers import MetricTracker

torch.manual_seed(0)
wine = load_wine()
x = torch.tensor((wine.data - wine.data.mean(0)) / wine.data.std(0))
loader = DataLoader(TensorDataset(x, torch.tensor(wine.target)), batch_size=24, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(13, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
metrics = MetricCollection(
    {
        "accuracy": MulticlassAccuracy(3),
        "f1": MulticlassF1Score(3, average=None),
        "auroc": MulticlassAUROC(3),
        "confusion": MulticlassConfusionMatrix(3),
    }
).set_dtype(torch.float64)
mean, tracker = MeanMetric().set_dtype(torch.float64), MetricTracker(MulticlassAccuracy(3))
for epoch in range(3):
    tracker.increment()
    for a, b in loader:
        out = model(a)
        loss = torch.nn.functional.cross_entropy(out, b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step = metrics(out, b)
        mean.update(loss, len(b))
        tracker.update(out, b)
    print(epoch, mean.compute().item(), step["accuracy"].item())
    print({name: value.tolist() for name, value in metrics.compute().items()})
    metrics.persistent(True)
    torch.save(metrics.state_dict(), "metrics.pt")
    metrics.reset()
    mean.reset()
print(tracker.best_metric(return_step=True), tracker.compute_all().tolist())
