"""PyTorch-Ignite: engines, metrics, handlers that log, stop early and keep the best models."""

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver, EarlyStopping, global_step_from_engine
from ignite.handlers.param_scheduler import LinearCyclicalScheduler
from ignite.handlers.tensorboard_logger import TensorboardLogger
from ignite.metrics import Accuracy, Loss, RunningAverage
from sklearn.datasets import load_iris
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
iris = load_iris()
order = torch.randperm(150)
x, y = torch.tensor(iris.data)[order], torch.tensor(iris.target)[order]
train = DataLoader(TensorDataset(x[:110], y[:110]), batch_size=16, shuffle=True)
val = DataLoader(TensorDataset(x[110:], y[110:]), batch_size=16)
model = torch.nn.Sequential(torch.nn.Linear(4, 12), torch.nn.ReLU(), torch.nn.Linear(12, 3)).double()
optimizer, criterion = torch.optim.Adam(model.parameters(), lr=1e-2), torch.nn.CrossEntropyLoss()
trainer = create_supervised_trainer(model, optimizer, criterion)
evaluator = create_supervised_evaluator(
    model, metrics={"accuracy": Accuracy(), "nll": Loss(criterion)}
)
RunningAverage(output_transform=lambda loss: loss).attach(trainer, "loss")
trainer.add_event_handler(
    Events.ITERATION_STARTED, LinearCyclicalScheduler(optimizer, "lr", 1e-3, 1e-2, len(train))
)


@trainer.on(Events.EPOCH_COMPLETED)
def validate(engine):
    evaluator.run(val)
    print(engine.state.epoch, engine.state.metrics["loss"], evaluator.state.metrics)


def score(engine):
    return engine.state.metrics["accuracy"]


best = Checkpoint(
    {"model": model, "optimizer": optimizer}, DiskSaver("best", create_dir=True), n_saved=2,
    score_function=score, score_name="accuracy", global_step_transform=global_step_from_engine(trainer),
)
evaluator.add_event_handler(Events.COMPLETED, best)
evaluator.add_event_handler(Events.COMPLETED, EarlyStopping(3, score, trainer))
with TensorboardLogger(log_dir="logs") as logger:
    logger.attach_output_handler(
        trainer, Events.ITERATION_COMPLETED(every=3), "train", output_transform=lambda x: {"loss": x}
    )
    trainer.run(train, max_epochs=5)
print(best.last_checkpoint, [p.sum().item() for p in model.parameters()])
