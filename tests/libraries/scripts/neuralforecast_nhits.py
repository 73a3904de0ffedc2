"""neuralforecast: N-HiTS and an LSTM on a long data frame; forecasts, cross validation, a save."""

import numpy as np
import pandas as pd
from neuralforecast import NeuralForecast
from neuralforecast.losses.pytorch import MQLoss
from neuralforecast.models import LSTM, NHITS

steps, random = np.arange(72), np.random.default_rng(0)
frame = pd.concat(
    pd.DataFrame({
        "unique_id": name,
        "ds": pd.date_range("2015-01-31", periods=72, freq="ME"),
        "y": 100.0 + 10 * i + steps + 8 * np.sin(steps * np.pi / 6) + random.normal(size=72),
    })
    for i, name in enumerate(("airline1", "airline2", "airline3", "airline4"))
)  # fmt: skip
quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
models = [
    NHITS(h=6, input_size=12, max_steps=15, mlp_units=3 * [[32, 32]], batch_size=4,
          windows_batch_size=32, val_check_steps=5, random_seed=1, **quiet),
    LSTM(h=6, input_size=12, max_steps=10, encoder_hidden_size=16, decoder_hidden_size=16,
         loss=MQLoss(level=[80]), scaler_type="robust", random_seed=1, **quiet),
]  # fmt: skip
forecast = NeuralForecast(models=models, freq="ME")
forecast.fit(df=frame, val_size=6)
ahead = forecast.predict()
with pd.option_context("display.precision", 6, "display.width", 200, "display.max_columns", 20):
    print(ahead.head(8))
    print(forecast.cross_validation(frame, val_size=6, n_windows=2, step_size=6).tail(4))
ahead.to_csv("forecast.csv", index=False)
forecast.save("checkpoints", overwrite=True, save_dataset=False)
again = NeuralForecast.load("checkpoints").predict(frame)
print(float(again["NHITS"].sum()))
