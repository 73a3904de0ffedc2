"""Lightning's Trainer: validation, the best checkpoints, early stopping, two loggers, resuming."""

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset, random_split


class Digits(L.LightningModule):
    def __init__(self, width=16, lr=1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(64, width, bias=False), torch.nn.BatchNorm1d(width), torch.nn.ReLU(),
            torch.nn.Dropout(0.2), torch.nn.Linear(width, 10),
        ).double()

    def training_step(self, batch, at):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.net(x), y)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, at):
        x, y = batch
        out = self.net(x)
        self.log("val_loss", torch.nn.functional.cross_entropy(out, y), prog_bar=True)
        self.log("val_acc", (out.argmax(1) == y).double().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)]


L.seed_everything(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data[:300] / 16), torch.tensor(digits.target[:300]))
train, val = random_split(data, [240, 60])
train, val = DataLoader(train, 32, shuffle=True), DataLoader(val, 32)
for epochs, start in ((2, None), (4, "kept/last.ckpt")):
    kept = ModelCheckpoint("kept", "{epoch}-{step}", monitor="val_loss", save_top_k=2, save_last=True)
    trainer = L.Trainer(
        max_epochs=epochs, accelerator="cpu", log_every_n_steps=2, gradient_clip_val=1.0,
        logger=[CSVLogger("logs"), TensorBoardLogger("logs")], enable_progress_bar=False,
        callbacks=[kept, EarlyStopping("val_loss", patience=3), LearningRateMonitor()],
    )
    model = Digits()
    trainer.fit(model, train, val, ckpt_path=start)
    print({name: value.item() for name, value in sorted(trainer.callback_metrics.items())})
print(trainer.validate(model, val, verbose=False), trainer.global_step, kept.best_model_path[-20:])
