"""A training that is configured on the command line, by Lightning's CLI."""

import lightning as L
import torch
from lightning.pytorch.cli import LightningCLI
from torch.utils.data import DataLoader, TensorDataset


class Sums(L.LightningDataModule):
    def __init__(self, count: int = 64, batch_size: int = 8):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage: str):
        x = torch.randn(self.hparams.count, 4, generator=torch.Generator().manual_seed(1)).double()
        self.data = TensorDataset(x, x.sum(1, keepdim=True))

    def train_dataloader(self):
        return DataLoader(self.data, self.hparams.batch_size, shuffle=True)

    def test_dataloader(self):
        return DataLoader(self.data, self.hparams.batch_size)


class Model(L.LightningModule):
    def __init__(self, width: int = 8, dropout: float = 0.1):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Dropout(dropout), torch.nn.Linear(width, 1)
        ).double()

    def training_step(self, batch, at):
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def test_step(self, batch, at):
        self.log("test_loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))


if __name__ == "__main__":
    cli = LightningCLI(Model, Sums, seed_everything_default=0)
    print({name: value.item() for name, value in cli.trainer.callback_metrics.items()})
    print(cli.trainer.test(cli.model, cli.datamodule, verbose=False))
