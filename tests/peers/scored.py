"""skorch: the best and each epoch's checkpoint, by a metric that it computes, and resuming."""

import os

import numpy as np
import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import Checkpoint, EpochScoring, LoadInitState, TrainEndCheckpoint

torch.manual_seed(0)
x = np.random.RandomState(0).randn(60, 5)
y = (x.sum(1) > 0).astype("int64")
model = torch.nn.Sequential(
    torch.nn.Linear(5, 12), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(12, 2)
).double()
best = Checkpoint(dirname="best", monitor="valid_loss_best")
each = Checkpoint(dirname="each", monitor=None, f_params="{last_epoch[epoch]}.pt")
score = ("right", EpochScoring("accuracy", name="right"))
for callbacks in ([best, each, score, TrainEndCheckpoint(dirname="end")], [LoadInitState(best)]):
    how = {"criterion": torch.nn.CrossEntropyLoss, "max_epochs": 3, "lr": 0.1, "verbose": 0}
    how |= {"batch_size": 8, "iterator_train__shuffle": True, "callbacks": callbacks}
    net = NeuralNetClassifier(model, **how).fit(x, y)
    names = ("epoch", "train_loss", "valid_loss", "valid_acc")
    print([[row[name] for name in names] for row in net.history], net.forward(x[:3]).tolist())
for folder, _, files in sorted(os.walk(".")):
    print(folder, sorted(files))
