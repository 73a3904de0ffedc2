"""A search by Optuna, in SQLite: pruned trials, their checkpoints, and the study opened again."""

import os

import optuna
import torch
from sklearn.datasets import load_breast_cancer
from torch.utils.data import DataLoader, TensorDataset

cancer = load_breast_cancer()
x = torch.tensor((cancer.data - cancer.data.mean(0)) / cancer.data.std(0))[:120]
data = TensorDataset(x, torch.tensor(cancer.target)[:120])
os.makedirs("trials")


def objective(trial):
    lr = trial.suggest_float("lr", 1e-3, 1e-1, log=True)
    width = trial.suggest_int("width", 4, 16)
    kind = trial.suggest_categorical("optimizer", ["SGD", "Adam"])
    torch.manual_seed(trial.number)
    model = torch.nn.Sequential(
        torch.nn.Linear(30, width), torch.nn.ReLU(), torch.nn.Linear(width, 2)
    ).double()
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr)
    for epoch in range(2):
        for a, b in DataLoader(data, batch_size=24, shuffle=True):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(a), b)
            loss.backward()
            optimizer.step()
        trial.report(loss.item(), epoch)
        if trial.should_prune():
            raise optuna.TrialPruned()
    torch.save(model.state_dict(), f"trials/{trial.number}.pt")
    return loss.item()


for start in (0, 3):
    study = optuna.create_study(
        study_name="cancer", storage="sqlite:///study.db", load_if_exists=True,
        sampler=optuna.samplers.TPESampler(seed=start, n_startup_trials=3),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=2),
    )
    study.optimize(objective, n_trials=3)
for trial in study.trials:
    print(trial.number, trial.state.name, trial.params, trial.value, trial.intermediate_values)
print(study.best_trial.number, study.best_params, sorted(os.listdir("trials")))
study.trials_dataframe(attrs=("number", "value", "params", "state")).to_csv("trials.csv")
