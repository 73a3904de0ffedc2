"""Optuna on SQLite: pruned trials, a checkpoint for each, and the study opened again."""

import os

import optuna
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(30, 4, dtype=torch.float64)
data = TensorDataset(x, x.sum(1, keepdim=True))


def objective(trial):
    lr = trial.suggest_float("lr", 1e-3, 1e-1, log=True)
    torch.manual_seed(trial.number)
    model = torch.nn.Linear(4, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for epoch in range(2):
        for a, b in DataLoader(data, batch_size=8, shuffle=True):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(a), b)
            loss.backward()
            optimizer.step()
        trial.report(loss.item(), epoch)
        if trial.should_prune():
            raise optuna.TrialPruned()
    os.makedirs("trials", exist_ok=True)
    torch.save(model.state_dict(), f"trials/{trial.number}.pt")
    return loss.item()


for seed in (0, 1):
    sampler = optuna.samplers.RandomSampler(seed=seed)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=2)
    place = {"study_name": "s", "storage": "sqlite:///study.db", "load_if_exists": True}
    study = optuna.create_study(sampler=sampler, pruner=pruner, **place)
    study.optimize(objective, n_trials=4)
for trial in study.trials:
    print(trial.number, trial.state.name, trial.params, trial.value, trial.intermediate_values)
print(study.best_trial.number, sorted(os.listdir(".")), sorted(os.listdir("trials")))
