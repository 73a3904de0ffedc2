"""fastai: a table in a DataLoaders, a Learner with fit_one_cycle, and an exported model."""

import numpy as np
import pandas as pd
from fastai.callback.all import Callback, CSVLogger, SaveModelCallback
from fastai.tabular.all import (
    Categorify,
    CategoryBlock,
    FillMissing,
    Normalize,
    RandomSplitter,
    TabularDataLoaders,
    accuracy,
    load_learner,
    range_of,
    set_seed,
    tabular_learner,
)


class Double(Callback):
    def before_batch(self):
        self.learn.xb = tuple(x.double() if x.is_floating_point() else x for x in self.xb)


set_seed(0, reproducible=True)
draw = np.random.default_rng(0)
table = pd.DataFrame(
    {
        "age": draw.integers(18, 80, 200).astype("float64"),
        "hours": draw.normal(40, 10, 200),
        "job": draw.choice(["cook", "nurse", "smith"], 200),
    }
)
table.loc[::17, "hours"] = np.nan
table["pay"] = np.where(table.age + 20 * (table.job == "nurse") > 55, "high", "low")
splits = RandomSplitter(valid_pct=0.2, seed=1)(range_of(table))
loaders = TabularDataLoaders.from_df(
    table, y_names="pay", cat_names=["job"], cont_names=["age", "hours"], splits=splits, bs=32,
    procs=[Categorify, FillMissing, Normalize], y_block=CategoryBlock(), valid_idx=splits[1],
    num_workers=0,
)
learner = tabular_learner(loaders, layers=[16, 8], metrics=accuracy, cbs=Double())
learner.model.double()
with learner.no_bar():
    learner.fit_one_cycle(3, 1e-2, cbs=[SaveModelCallback(monitor="valid_loss"), CSVLogger()])
print([[float(x) for x in row] for row in learner.recorder.values])
learner.export("learner.pkl")
again = load_learner("learner.pkl")
row, label, chances = again.predict(table.iloc[0])
print(label, chances.tolist())
