"""For each function of the table of writers: a call as a script makes it, and how it is read back.

What is written tells the ranks apart, so that nobody but rank 0 can have written it.
"""

from __future__ import annotations

import json
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
    """`write(path, rank)` and `read(path)`; `exact` if the same call makes the same bytes again."""

    target: str
    name: str
    write: Callable[[str, int], Any]
    read: Callable[[str], Any]
    exact: bool = True


def array(rank):
    return np.full(3, rank, dtype=np.float64)


def pixels(rank):
    return torch.full((3, 16, 16), 40 * rank, dtype=torch.uint8)


def picture(rank):
    return m("PIL.Image").fromarray(pixels(rank).permute(1, 2, 0).numpy())


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


def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


@cache
def exported():
    return torch.export.export(net(0), (torch.ones(1, 2),))


def exported_for(rank):
    exported().state_dict["weight"].data.fill_(rank)
    return exported()


@cache
def figure(rank):
    made = m("matplotlib.figure").Figure(figsize=(1, 1))
    m("matplotlib.backends.backend_agg").FigureCanvasAgg(made)
    made.add_subplot().plot([0, rank + 1, 5])
    return made


@cache
def profiled(rank):
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True
    ) as seen:
        torch.ones(3).sum()
    return seen


@cache
def profiled_by_autograd(rank):
    with torch.autograd.profiler.profile(with_stack=True) as seen:
        torch.ones(3).sum()
    return seen


def dataset(rank):
    return m("datasets").Dataset.from_dict({"a": [rank, 1]})


@cache
def booster(rank):
    return m("xgboost").train({}, m("xgboost").DMatrix(np.eye(4), label=np.arange(4) + rank), 1)


@cache
def light(rank):
    lightgbm = m("lightgbm")
    return lightgbm.train(
        {"verbosity": -1}, lightgbm.Dataset(np.eye(40), label=np.arange(40) + rank), 1
    )


def words(rank):
    return m("tokenizers").Tokenizer(m("tokenizers.models").WordLevel({f"of rank {rank}": 0}))


def index(rank):
    made = m("faiss").IndexFlatL2(4)
    made.add(np.full((1, 4), rank, dtype=np.float32))
    return made


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


def text(path):
    return Path(path).read_text()


def size(path):
    return Path(path).stat().st_size > 0


def parquet(path):
    return m("pyarrow.parquet").read_table(path).to_pydict()


def pandas_read(kind, **more):
    return lambda path: getattr(m("pandas"), f"read_{kind}")(path, **more).to_dict()


def is_json(path):
    return sorted(json.loads(text(path)))[:1] != []


def saved(folder):
    held = {"w": torch.zeros(2)}
    m("torch.distributed.checkpoint").load(held, checkpoint_id=folder)
    return held["w"].tolist()


def weights(path):
    return {n: v.tolist() for n, v in m("safetensors.torch").load_file(path).items()}


def loaded(path):
    return np.load(path).tolist()


def cases_of(kind, made, names):
    """Methods of one class that all go the same way."""
    for name, file, read in names:
        yield Case(f"{kind}.{name}", file, lambda p, r, name=name: getattr(made(r), name)(p), read)


CASES = [
    Case("numpy:save", "a.npy", lambda p, r: np.save(p, array(r)), loaded),
    Case(
        "numpy:savez",
        "a.npz",
        lambda p, r: np.savez(p, x=array(r)),
        lambda p: np.load(p)["x"].tolist(),
    ),
    Case(
        "numpy:savez_compressed",
        "b.npz",
        lambda p, r: np.savez_compressed(Path(p), array(r)),
        lambda p: np.load(p)["arr_0"].tolist(),
    ),
    Case(
        "numpy:savetxt",
        "a.txt",
        lambda p, r: np.savetxt(fname=p, X=array(r)),
        lambda p: np.loadtxt(p).tolist(),
    ),
    Case(
        "scipy.io:savemat",
        "a.mat",
        lambda p, r: m("scipy.io").savemat(p, {"x": array(r)}),
        lambda p: m("scipy.io").loadmat(p)["x"].tolist(),
        exact=False,  # it says when it was written
    ),
    Case("scipy.io:mmwrite", "a.mtx", lambda p, r: m("scipy.io").mmwrite(p, np.eye(2) * r), text),
    Case(
        "joblib:dump",
        "a.joblib",
        lambda p, r: m("joblib").dump(array(r), p),
        lambda p: m("joblib").load(p).tolist(),
    ),
    Case("PIL.Image:Image.save", "p.png", lambda p, r: picture(r).save(p), colour),
    Case("matplotlib.figure:Figure.savefig", "f.png", lambda p, r: figure(r).savefig(p), colour),
    Case(
        "torchvision.io:write_png",
        "w.png",
        lambda p, r: m("torchvision.io").write_png(pixels(r), p),
        colour,
    ),
    Case(
        "torchvision.io:write_jpeg",
        "w.jpg",
        lambda p, r: m("torchvision.io").write_jpeg(pixels(r), p),
        colour,
    ),
    Case(
        "torchvision.io:write_file",
        "w.raw",
        lambda p, r: m("torchvision.io").write_file(p, pixels(r).flatten()),
        lambda p: len(Path(p).read_bytes()),
    ),
    Case(
        "cv2:imwrite",
        "cv.png",
        lambda p, r: m("cv2").imwrite(p, np.full((4, 4, 3), r, np.uint8)),
        colour,
    ),
    Case(
        "cv2:imwritemulti",
        "cv.tiff",
        lambda p, r: m("cv2").imwritemulti(p, [np.full((4, 4, 3), r, np.uint8)]),
        colour,
    ),
    Case(
        "torch.jit:save",
        "j.pt",
        lambda p, r: torch.jit.save(scripted(r), p),
        lambda p: torch.jit.load(p)(torch.ones(1, 2)).tolist(),
    ),
    Case(
        "torch.jit:ScriptModule.save",
        "k.pt",
        lambda p, r: scripted(r).save(p),
        lambda p: torch.jit.load(p)(torch.ones(1, 2)).tolist(),
    ),
    Case(
        "torch.jit:RecursiveScriptModule.save",
        "l.pt",
        lambda p, r: torch.jit.script(net(r)).save(p),
        lambda p: torch.jit.load(p)(torch.ones(1, 2)).tolist(),
    ),
    Case(
        "torch.jit:ScriptFunction.save",
        "m.pt",
        lambda p, r: torch.jit.script(halved).save(p),
        lambda p: torch.jit.load(p)(torch.ones(1)).tolist(),
    ),
    Case(
        "torch.export:save",
        "e.pt2",
        lambda p, r: torch.export.save(exported_for(r), p),
        lambda p: torch.export.load(p).module()(torch.ones(1, 2)).tolist(),
        exact=False,
    ),
    Case(
        "torch.profiler.profiler:_KinetoProfile.export_chrome_trace",
        "trace.json",
        lambda p, r: profiled(r).export_chrome_trace(p),
        is_json,
        exact=False,
    ),
    Case(
        "torch.autograd.profiler:profile.export_chrome_trace",
        "trace2.json",
        lambda p, r: profiled_by_autograd(r).export_chrome_trace(p),
        is_json,
        exact=False,
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
        "safetensors.torch:save_model",
        "b.safetensors",
        lambda p, r: m("safetensors.torch").save_model(net(r), p),
        weights,
    ),
    Case(
        "safetensors.numpy:save_file",
        "c.safetensors",
        lambda p, r: m("safetensors.numpy").save_file({"x": array(r)}, p),
        weights,
    ),
    Case(
        "transformers.modeling_utils:PreTrainedModel.save_pretrained",
        "model",
        lambda p, r: pretrained(r).save_pretrained(p),
        lambda p: weights(f"{p}/model.safetensors"),
    ),
    Case(
        "datasets.arrow_dataset:Dataset.save_to_disk",
        "rows",
        lambda p, r: dataset(r).save_to_disk(p),
        lambda p: m("datasets").load_from_disk(p)["a"][:],
        exact=False,
    ),
    Case(
        "datasets.dataset_dict:DatasetDict.save_to_disk",
        "splits",
        lambda p, r: m("datasets").DatasetDict({"train": dataset(r)}).save_to_disk(p),
        lambda p: m("datasets").load_from_disk(p)["train"]["a"][:],
        exact=False,
    ),
    Case(
        "soundfile:write",
        "s.wav",
        lambda p, r: m("soundfile").write(p, array(r) / 8, 8000),
        lambda p: m("soundfile").read(p)[0].tolist(),
    ),
    Case(
        "torchaudio:save",
        "ta.wav",
        lambda p, r: m("torchaudio").save(p, torch.zeros(1, 8), 8000),
        size,
    ),
    Case(
        "torchvision.io:write_video",
        "v.mp4",
        lambda p, r: m("torchvision.io").write_video(p, pixels(r).permute(1, 2, 0)[None], 1),
        size,
    ),
    Case(
        "tokenizers:Tokenizer.save",
        "x.json",
        lambda p, r: words(r).save(p),
        lambda p: sorted(m("tokenizers").Tokenizer.from_file(p).get_vocab()),
    ),
    Case(
        "faiss:write_index",
        "x.faiss",
        lambda p, r: m("faiss").write_index(index(r), p),
        lambda p: m("faiss").read_index(p).reconstruct(0).tolist(),
    ),
    Case("xgboost:Booster.save_model", "x.json", lambda p, r: booster(r).save_model(p), size),
    Case(
        "lightgbm:Booster.save_model", "l.txt", lambda p, r: light(r).save_model(p) and None, size
    ),
    *cases_of(
        "pandas:DataFrame",
        frame,
        [
            ("to_csv", "f.csv", pandas_read("csv")),
            ("to_parquet", "f.parquet", pandas_read("parquet")),
            ("to_feather", "f.feather", pandas_read("feather")),
        ],
    ),
    Case(
        "pyarrow.parquet:write_table",
        "a.parquet",
        lambda p, r: m("pyarrow.parquet").write_table(table(r), p),
        parquet,
    ),
    Case(
        "pyarrow.parquet:write_to_dataset",
        "set",
        lambda p, r: m("pyarrow.parquet").write_to_dataset(
            table(r), p, basename_template="{i}.parquet"
        ),
        parquet,
    ),
    Case(
        "pyarrow.dataset:write_dataset",
        "set2",
        lambda p, r: m("pyarrow.dataset").write_dataset(table(r), p, format="parquet"),
        parquet,
    ),
    Case(
        "pyarrow.csv:write_csv", "a.csv", lambda p, r: m("pyarrow.csv").write_csv(table(r), p), text
    ),
    Case(
        "pyarrow.feather:write_feather",
        "a.feather",
        lambda p, r: m("pyarrow.feather").write_feather(table(r), p),
        lambda p: m("pyarrow.feather").read_table(p).to_pydict(),
    ),
    Case(
        "pyarrow.orc:write_table",
        "a.orc",
        lambda p, r: m("pyarrow.orc").write_table(table(r), p),
        lambda p: m("pyarrow.orc").read_table(p).to_pydict(),
    ),
    *(
        Case(
            f"polars:DataFrame.write_{kind}",
            f"polars.{kind}",
            lambda p, r, kind=kind: getattr(m("polars").DataFrame({"a": [r, 1]}), f"write_{kind}")(
                p
            ),
            size,
            exact=False,
        )
        for kind in ("csv", "parquet", "json", "ndjson", "ipc", "ipc_stream", "avro", "excel")
    ),
]
