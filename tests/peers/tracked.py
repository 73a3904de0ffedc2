"""MLflow's file store: parameters, a metric for each step, artifacts, and a run that is read."""

import os

os.environ |= {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
import mlflow
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(30, 4, dtype=torch.float64)
model = torch.nn.Linear(4, 1).double()
optimizer = torch.optim.SGD(model.parameters(), 0.05)
mlflow.set_tracking_uri("file:" + os.path.abspath("runs"))
mlflow.set_experiment("tiny")
with mlflow.start_run(run_name="first") as run:
    mlflow.log_params({"lr": 0.05})
    for step, (a, b) in enumerate(DataLoader(TensorDataset(x, x.sum(1, True)), 8, shuffle=True)):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
        mlflow.log_metric("loss", loss.item(), step=step)
    torch.save(model.state_dict(), "weights.pt")
    mlflow.log_artifact("weights.pt", "models")
number, client = run.info.run_id, mlflow.MlflowClient()
print(client.get_run(number).data.params, len(mlflow.search_runs()))
print([(one.step, one.value) for one in client.get_metric_history(number, "loss")])
print([file.path for file in client.list_artifacts(number, "models")], sorted(os.listdir(".")))
print(sorted(name for _, _, files in os.walk("runs") for name in files))
