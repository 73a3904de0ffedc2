"""Lightning's Trainer: validation, the best checkpoints, a log, a time limit, and resuming."""

import os

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
        ).double()

    def training_step(self, batch, at):
        a, b = batch
        loss = torch.nn.functional.mse_loss(self.net(a), b)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, at):
        a, b = batch
        self.log("val", torch.nn.functional.mse_loss(self.net(a), b))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return {
            "optimizer": optimizer,
            "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2),
        }


L.seed_everything(0)
x = torch.randn(30, 4, dtype=torch.float64)
data = TensorDataset(x, x.sum(1, keepdim=True))
for epochs, start in ((2, None), (4, "kept/last.ckpt")):
    kept = ModelCheckpoint("kept", "{epoch}", monitor="val", save_top_k=2, save_last=True)
    trainer = L.Trainer(
        max_epochs=epochs, max_time={"hours": 1},
        accelerator="cpu", devices=1,
        enable_progress_bar=False, enable_model_summary=False,
        log_every_n_steps=1,
        gradient_clip_val=1.0,
        logger=CSVLogger("logs"),
        callbacks=[kept, EarlyStopping("val", patience=3)],
    )  # fmt: skip
    model = Net()
    train, val = DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=8)
    trainer.fit(model, train, val, ckpt_path=start)
    metrics = sorted((name, value.item()) for name, value in trainer.callback_metrics.items())
    print(metrics, trainer.global_step, os.path.basename(kept.best_model_path))
    print([p.tolist() for p in model.parameters()])
for folder, _, files in sorted(os.walk(".")):
    print(folder, sorted(files))
with open("logs/lightning_logs/version_0/metrics.csv") as log:
    print(log.read())
