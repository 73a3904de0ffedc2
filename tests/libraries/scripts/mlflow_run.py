"""A training that MLflow tracks in files: parameters, metrics, artifacts, and a model of a registry."""

import os

os.environ |= {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
import mlflow
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(44, 4, dtype=torch.float64)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
optimizer = torch.optim.SGD(model.parameters(), 0.05)
mlflow.set_tracking_uri("file:" + os.path.abspath("runs"))
mlflow.set_experiment("tiny")
with mlflow.start_run(run_name="first") as run:
    mlflow.log_params({"lr": 0.05, "layers": 2})
    mlflow.set_tag("kind", "regression")
    step = 0
    for epoch in range(2):
        for a, b in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(a), b)
            loss.backward()
            optimizer.step()
            mlflow.log_metric("loss", loss.item(), step=step)
            step += 1
    torch.save(model.state_dict(), "weights.pt")
    mlflow.log_artifact("weights.pt", "models")
    mlflow.log_dict({"loss": loss.item()}, "summary.json")
    mlflow.log_text(str(model), "model.txt")
number, client = run.info.run_id, mlflow.MlflowClient()
found = client.get_run(number)
print(found.data.params, found.data.metrics, found.info.status, found.info.run_name)
print([(one.step, one.value) for one in client.get_metric_history(number, "loss")])
print(sorted(file.path for file in client.list_artifacts(number)))
print(mlflow.search_runs()["metrics.loss"].tolist())
