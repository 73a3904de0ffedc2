"""skorch: a net as an estimator of scikit-learn, in a grid search; the best one is kept."""

import pickle

import torch
from sklearn.datasets import make_classification
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from skorch.callbacks import Checkpoint, EarlyStopping, EpochScoring, LRScheduler


class Net(torch.nn.Module):
    def __init__(self, width=8, dropout=0.1):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(6, width), torch.nn.ReLU(), torch.nn.Dropout(dropout), torch.nn.Linear(width, 2)
        ).double()

    def forward(self, x):
        return self.net(x)


torch.manual_seed(0)
x, y = make_classification(120, 6, n_informative=4, random_state=0)
net = NeuralNetClassifier(
    Net, criterion=torch.nn.CrossEntropyLoss, max_epochs=4, lr=0.1, batch_size=16, verbose=0,
    iterator_train__shuffle=True,
    callbacks=[
        ("auc", EpochScoring("roc_auc", lower_is_better=False)),
        ("stop", EarlyStopping(patience=3)),
        ("lr", LRScheduler(torch.optim.lr_scheduler.StepLR, step_size=2)),
    ],
)
pipeline = make_pipeline(StandardScaler(), net)
grid = {"neuralnetclassifier__lr": [0.05, 0.2], "neuralnetclassifier__module__width": [4, 8]}
search = GridSearchCV(pipeline, grid, cv=2, scoring="accuracy", refit=True).fit(x, y)
print(search.best_params_, search.best_score_, search.cv_results_["mean_test_score"].tolist())
best = search.best_estimator_[-1]
print([[row["train_loss"], row["valid_loss"], row["roc_auc"]] for row in best.history])
best.save_params(f_params="best.pt", f_optimizer="optimizer.pt", f_history="history.json")
best.set_params(callbacks=[("kept", Checkpoint(dirname="kept"))]).fit(x, y)
with open("search.pkl", "wb") as file:
    pickle.dump(search.best_params_, file)
print(search.predict_proba(x[:3]).tolist())
