"""A call of each function in the table of writers, and how to read its file.

What is written tells the ranks apart, so that nobody but rank 0 can have written it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module as m
from pathlib import Path
from typing import Any

import numpy as np
import torch


@dataclass
class Case:
    """`write(path, rank)` and `read(path)`; `exact`: the same call always writes the same bytes."""

    target: str
    name: str
    write: Callable[[str, int], Any]
    read: Callable[[str], Any]
    exact: bool = True


def array(rank):
    return np.full(3, rank, dtype=np.float64)


def pixels(rank):
    return torch.full((3, 16, 16), 40 * rank, dtype=torch.uint8)


def colour(path):
    return m("PIL.Image").open(path).getpixel((1, 1))


def frame(rank):
    return m("pandas").DataFrame({"a": [rank, 1], "b": [2.5, 3.5]}, index=["x", "y"])


def table(rank):
    return m("pyarrow").table({"a": [rank, 1]})


def net(rank):
    made = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(made.weight, rank)
    torch.nn.init.constant_(made.bias, 0)
    return made


@cache
def scripted(rank):
    return torch.jit.trace(net(rank), torch.ones(1, 2))


def pretrained(rank):
    transformers = m("transformers")

    class Net(transformers.PreTrainedModel):
        config_class = transformers.PretrainedConfig

        def __init__(self, config):
            super().__init__(config)
            self.layer = torch.nn.Linear(2, 1)
            self.post_init()

    made = Net(transformers.PretrainedConfig())
    made.layer = net(rank)
    return made


def size(path):
    return Path(path).stat().st_size > 0


def parquet(path):
    return m("pyarrow.parquet").read_table(path).to_pydict()


def saved(folder):
    held = {"w": torch.zeros(2)}
    m("torch.distributed.checkpoint").load(held, checkpoint_id=folder)
    return held["w"].tolist()


def weights(path):
    return {n: v.tolist() for n, v in m("safetensors.torch").load_file(path).items()}


def loaded(path):
    return np.load(path).tolist()


CASES = [
    Case("numpy:save", "a.npy", lambda p, r: np.save(p, array(r)), loaded),
    Case(
        "joblib:dump",
        "a.joblib",
        lambda p, r: m("joblib").dump(array(r), p),
        lambda p: m("joblib").load(p).tolist(),
    ),
    Case(
        "torchvision.io:write_png",
        "w.png",
        lambda p, r: m("torchvision.io").write_png(pixels(r), p),
        colour,
    ),
    Case(
        "cv2:imwrite",
        "cv.png",
        lambda p, r: m("cv2").imwrite(p, np.full((4, 4, 3), r, np.uint8)),
        colour,
    ),
    Case(
        "torch.jit:save",
        "j.pt",
        lambda p, r: torch.jit.save(scripted(r), p),
        lambda p: torch.jit.load(p)(torch.ones(1, 2)).tolist(),
    ),
    Case(
        "torch.distributed.checkpoint:save",
        "dcp",
        lambda p, r: (
            m("torch.distributed.checkpoint").save(
                {"w": torch.full((2,), r + 1.0)}, checkpoint_id=p
            )
            and None
        ),
        saved,
        exact=False,
    ),
    Case(
        "safetensors.torch:save_file",
        "a.safetensors",
        lambda p, r: m("safetensors.torch").save_file({"x": torch.full((2,), r)}, p),
        weights,
    ),
    Case(
        "transformers.modeling_utils:PreTrainedModel.save_pretrained",
        "model",
        lambda p, r: pretrained(r).save_pretrained(p),
        lambda p: weights(f"{p}/model.safetensors"),
    ),
    Case(
        "pyarrow.parquet:write_table",
        "a.parquet",
        lambda p, r: m("pyarrow.parquet").write_table(table(r), p),
        parquet,
    ),
    Case("pandas:DataFrame.to_parquet", "f.parquet", lambda p, r: frame(r).to_parquet(p), parquet),
    Case(
        "polars:DataFrame.write_parquet",
        "polars.parquet",
        lambda p, r: m("polars").DataFrame({"a": [r, 1]}).write_parquet(p),
        size,
        exact=False,
    ),
]
