"""pytorch-forecasting: a temporal fusion transformer on series of a data frame, by Lightning."""

import lightning.pytorch as pl
import numpy as np
import pandas as pd
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from pytorch_forecasting import GroupNormalizer, TemporalFusionTransformer, TimeSeriesDataSet
from pytorch_forecasting.metrics import QuantileLoss

pl.seed_everything(0)
random = np.random.default_rng(0)
steps = np.arange(36)
data = pd.concat(
    pd.DataFrame({
        "time_idx": steps,
        "agency": f"agency{i}",
        "month": (steps % 12).astype(str),
        "price": 1 + 0.1 * np.cos(steps / 5 + i),
        "volume": 20 + 5 * i + 4 * np.sin(steps / 2) + random.normal(size=36),
    })
    for i in range(6)
).reset_index(drop=True)  # fmt: skip
data["month"] = data["month"].astype("category")
training = TimeSeriesDataSet(
    data[data.time_idx <= 29],
    time_idx="time_idx", target="volume", group_ids=["agency"],
    max_encoder_length=10, max_prediction_length=4,
    static_categoricals=["agency"],
    time_varying_known_categoricals=["month"],
    time_varying_known_reals=["time_idx", "price"],
    time_varying_unknown_reals=["volume"],
    target_normalizer=GroupNormalizer(groups=["agency"], transformation="softplus"),
    add_relative_time_idx=True, add_target_scales=True, add_encoder_length=True,
)  # fmt: skip
validation = TimeSeriesDataSet.from_dataset(training, data, predict=True, stop_randomization=True)
train = training.to_dataloader(train=True, batch_size=32, num_workers=0)
val = validation.to_dataloader(train=False, batch_size=32, num_workers=0)
model = TemporalFusionTransformer.from_dataset(
    training, learning_rate=0.03, hidden_size=8, attention_head_size=1, dropout=0.1,
    hidden_continuous_size=4, loss=QuantileLoss(), optimizer="adam",
)  # fmt: skip
trainer = pl.Trainer(
    max_epochs=3, limit_train_batches=4, accelerator="cpu", gradient_clip_val=0.1,
    precision="64-true",
    enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=2,
    callbacks=[EarlyStopping("val_loss", patience=5), LearningRateMonitor()],
    logger=CSVLogger("logs"),
)  # fmt: skip
trainer.fit(model, train_dataloaders=train, val_dataloaders=val)
for name, value in sorted(trainer.callback_metrics.items()):
    print(name, f"{value.item():.6f}")
best = TemporalFusionTransformer.load_from_checkpoint(trainer.checkpoint_callback.best_model_path,
                                                      weights_only=False)  # fmt: skip
with torch.no_grad():
    quantiles = best.eval()(next(iter(val))[0])["prediction"]
print([f"{v:.5f}" for v in quantiles[..., 3].flatten().tolist()])
