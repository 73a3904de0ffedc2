"""pytorch-tabnet: pretrain and fit a classifier of a table, with evaluation and early stopping."""

import numpy as np
import torch
from pytorch_tabnet.pretraining import TabNetPretrainer
from pytorch_tabnet.tab_model import TabNetClassifier
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import accuracy_score
from sklearn.model_selection import train_test_split

torch.set_default_dtype(torch.float64)
torch.Tensor.float = torch.Tensor.double  # it converts its batches by float()
x, y = load_breast_cancer(return_X_y=True)
x = (x - x.mean(0)) / x.std(0)
x_train, x_valid, y_train, y_valid = train_test_split(x, y, random_state=0)
sizes = {"n_d": 8, "n_a": 8, "n_steps": 2, "seed": 0, "device_name": "cpu"}
pretrained = TabNetPretrainer(optimizer_params={"lr": 2e-2}, verbose=1, **sizes)
pretrained.fit(x_train, eval_set=[x_valid], pretraining_ratio=0.8, max_epochs=2, batch_size=128,
               virtual_batch_size=64)  # fmt: skip
model = TabNetClassifier(
    optimizer_fn=torch.optim.Adam, optimizer_params={"lr": 2e-2}, mask_type="entmax",
    scheduler_params={"step_size": 2, "gamma": 0.9},
    scheduler_fn=torch.optim.lr_scheduler.StepLR, verbose=0, **sizes,
)  # fmt: skip
model.fit(
    x_train, y_train, eval_set=[(x_train, y_train), (x_valid, y_valid)],
    eval_name=["train", "valid"], eval_metric=["auc", "logloss"], max_epochs=4, patience=3,
    batch_size=128, virtual_batch_size=64, weights=1, drop_last=False,
    from_unsupervised=pretrained,
)  # fmt: skip
for name, values in model.history.history.items():
    print(name, [f"{value:.6f}" for value in np.ravel(values)])
print("accuracy", accuracy_score(y_valid, model.predict(x_valid)))
print([f"{value:.5f}" for value in model.feature_importances_])
model.save_model("tabnet")
loaded = TabNetClassifier()
loaded.load_model("tabnet.zip")
print(f"{float(loaded.predict_proba(x_valid).std()):.6f}")
