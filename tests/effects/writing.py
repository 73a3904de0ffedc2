"""For each function of the table of writers: a call as a script makes it, and how it is read back.

What is written tells the ranks apart, so that nobody but rank 0 can have written it.
"""

from __future__ import annotations

import json
import pickle
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


def column(rank):
    return m("pandas").Series([rank, 1], name="a")


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


def film(rank):
    made = figure(rank)
    return m("matplotlib.animation").FuncAnimation(
        made, lambda n: made.axes[0].plot([n, rank]), frames=2
    )


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


def graph(rank):
    helper = m("onnx.helper")
    node = helper.make_node("Identity", ["x"], [f"y{rank}"])
    ends = [helper.make_tensor_value_info(name, 1, [1]) for name in ("x", f"y{rank}")]
    return helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:]))


def sheet(rank):
    made = m("openpyxl").Workbook()
    made.active["A1"] = rank
    return made


def hub(rank):
    class Net(torch.nn.Linear, m("huggingface_hub").PyTorchModelHubMixin):
        pass

    made = Net(2, 1, bias=False)
    torch.nn.init.constant_(made.weight, rank)
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


def tokenizer(rank):
    tokenizers = m("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"{rank}": 0}))
    return m("transformers").PreTrainedTokenizerFast(tokenizer_object=words)


def processor(rank):
    class Words(m("transformers").ProcessorMixin):
        attributes = ("tokenizer",)
        tokenizer_class = "PreTrainedTokenizerFast"

        def __init__(self, tokenizer):
            super().__init__(tokenizer)

    return Words(tokenizer(rank))


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


def unpickled(path):
    with open(path, "rb") as file:
        return np.asarray(pickle.load(file)).tolist()


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
        "numpy:ndarray.tofile",
        "a.raw",
        lambda p, r: array(r).tofile(p),
        lambda p: np.fromfile(p).tolist(),
    ),
    Case("numpy:ndarray.dump", "a.dump", lambda p, r: array(r).dump(Path(p)), unpickled),
    Case(
        "scipy.io:savemat",
        "a.mat",
        lambda p, r: m("scipy.io").savemat(p, {"x": array(r)}),
        lambda p: m("scipy.io").loadmat(p)["x"].tolist(),
        exact=False,  # it says when it was written
    ),
    Case("scipy.io:mmwrite", "a.mtx", lambda p, r: m("scipy.io").mmwrite(p, np.eye(2) * r), text),
    Case(
        "scipy.io.wavfile:write",
        "a.wav",
        lambda p, r: m("scipy.io.wavfile").write(p, 8000, array(r)),
        lambda p: m("scipy.io.wavfile").read(p)[1].tolist(),
    ),
    Case(
        "scipy.sparse:save_npz",
        "s.npz",
        lambda p, r: m("scipy.sparse").save_npz(
            p, m("scipy.sparse").csr_matrix(np.eye(2) * (r + 1))
        ),
        lambda p: m("scipy.sparse").load_npz(p).toarray().tolist(),
    ),
    Case(
        "joblib:dump",
        "a.joblib",
        lambda p, r: m("joblib").dump(array(r), p),
        lambda p: m("joblib").load(p).tolist(),
    ),
    Case(
        "sklearn.datasets:dump_svmlight_file",
        "a.svm",
        lambda p, r: m("sklearn.datasets").dump_svmlight_file(np.eye(2), [r, 1], p),
        text,
    ),
    Case("PIL.Image:Image.save", "p.png", lambda p, r: picture(r).save(p), colour),
    Case("matplotlib.figure:Figure.savefig", "f.png", lambda p, r: figure(r).savefig(p), colour),
    Case(
        "matplotlib.image:imsave",
        "i.png",
        lambda p, r: m("matplotlib.image").imsave(p, np.full((4, 4, 3), r / 4)),
        colour,
    ),
    Case(
        "matplotlib.animation:Animation.save",
        "film.gif",
        lambda p, r: film(r).save(p, writer="pillow"),
        lambda p: m("PIL.Image").open(p).n_frames,
    ),
    Case(
        "torchvision.utils:save_image",
        "s.png",
        lambda p, r: m("torchvision.utils").save_image(pixels(r) / 255, p),
        colour,
    ),
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
    *(
        Case(f"{where}:{name}", f"{where}-{name}.png", write, colour)
        for where in ("imageio", "imageio.v2", "imageio.v3")
        for name in ("imwrite", "imsave")
        if (where, name) != ("imageio.v3", "imsave")
        for write in [
            lambda p, r, where=where, name=name: getattr(m(where), name)(
                p, np.full((4, 4, 3), r, np.uint8)
            )
        ]
    ),
    *(
        Case(f"{where}:{name}", f"{where}-{name}.gif", write, colour)
        for where in ("imageio", "imageio.v2")
        for name in ("mimwrite", "mimsave")
        for write in [
            lambda p, r, where=where, name=name: getattr(m(where), name)(
                p, [np.full((4, 4, 3), r, np.uint8)]
            )
        ]
    ),
    Case(
        "skimage.io:imsave",
        "sk.png",
        lambda p, r: m("skimage.io").imsave(
            p, np.full((4, 4, 3), r, np.uint8), check_contrast=False
        ),
        colour,
    ),
    Case(
        "tifffile:imwrite",
        "t.tif",
        lambda p, r: m("tifffile").imwrite(p, np.full((4, 4), r, np.uint8)),
        lambda p: m("tifffile").imread(p).tolist(),
        exact=False,
    ),
    *(
        Case(
            f"plotly.io:write_{kind}",
            f"plot.{kind}".replace("image", "png"),
            lambda p, r, kind=kind: getattr(m("plotly.graph_objects").Figure(), f"write_{kind}")(p),
            size,
            exact=kind == "json",
        )
        for kind in ("json", "html", "image")
    ),
    Case(
        "trimesh:Trimesh.export", "b.obj", lambda p, r: m("trimesh").creation.box().export(p), size
    ),
    Case(
        "trimesh:Scene.export",
        "s.glb",
        lambda p, r: m("trimesh").creation.box().scene().export(p),
        size,
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
        "torch.onnx:export",
        "o.onnx",
        lambda p, r: m("torch.onnx").export(net(r), (torch.ones(1, 2),), p) and None,
        size,
    ),
    Case(
        "torch.profiler.profiler:_KinetoProfile.export_chrome_trace",
        "trace.json",
        lambda p, r: profiled(r).export_chrome_trace(p),
        is_json,
        exact=False,
    ),
    Case(
        "torch.profiler.profiler:_KinetoProfile.export_stacks",
        "stacks.txt",
        lambda p, r: profiled(r).export_stacks(p, "self_cpu_time_total"),
        lambda p: isinstance(text(p), str),
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
        "torch.autograd.profiler:profile.export_stacks",
        "stacks2.txt",
        lambda p, r: profiled_by_autograd(r).export_stacks(p),
        lambda p: isinstance(text(p), str),
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
        "huggingface_hub.hub_mixin:ModelHubMixin.save_pretrained",
        "hub",
        lambda p, r: hub(r).save_pretrained(p),
        lambda p: weights(f"{p}/model.safetensors"),
    ),
    Case(
        "transformers.configuration_utils:PretrainedConfig.save_pretrained",
        "config",
        lambda p, r: m("transformers").PretrainedConfig(bos_token_id=r).save_pretrained(p),
        lambda p: text(f"{p}/config.json"),
    ),
    Case(
        "transformers.modeling_utils:PreTrainedModel.save_pretrained",
        "model",
        lambda p, r: pretrained(r).save_pretrained(p),
        lambda p: weights(f"{p}/model.safetensors"),
    ),
    Case(
        "transformers.tokenization_utils_base:PreTrainedTokenizerBase.save_pretrained",
        "words",
        lambda p, r: tokenizer(r).save_pretrained(p),
        lambda p: text(f"{p}/tokenizer.json"),
    ),
    Case(
        "transformers.processing_utils:ProcessorMixin.save_pretrained",
        "processor",
        lambda p, r: processor(r).save_pretrained(p),
        lambda p: text(f"{p}/tokenizer.json"),
    ),
    Case(
        "omegaconf:OmegaConf.save",
        "c.yaml",
        lambda p, r: m("omegaconf").OmegaConf.save(m("omegaconf").OmegaConf.create({"a": r}), p),
        text,
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
        "xgboost:XGBModel.save_model",
        "xm.json",
        lambda p, r: (
            m("xgboost").XGBRegressor(n_estimators=1).fit(np.eye(4), np.arange(4) + r).save_model(p)
        ),
        size,
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
    *(
        Case(
            f"onnx:{name}",
            f"{name}.onnx",
            lambda p, r, name=name: getattr(m("onnx"), name)(graph(r), p),
            lambda p: m("onnx").load(p).graph.output[0].name,
        )
        for name in ("save", "save_model")
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
            ("to_json", "f.json", pandas_read("json")),
            ("to_pickle", "f.pickle", pandas_read("pickle")),
            ("to_parquet", "f.parquet", pandas_read("parquet")),
            ("to_feather", "f.feather", pandas_read("feather")),
            ("to_html", "f.html", text),
            ("to_latex", "f.tex", text),
            ("to_markdown", "f.md", text),
            ("to_string", "f.txt", text),
            ("to_xml", "f.xml", text),
        ],
    ),
    Case(
        "pandas:DataFrame.to_stata",
        "f.dta",
        lambda p, r: frame(r).to_stata(p),
        pandas_read("stata"),
        exact=False,  # it says when it was written
    ),
    *(
        Case(
            f"pandas:{kind}.to_excel",
            f"{kind}.xlsx",
            lambda p, r, made=made: made(r).to_excel(p),
            pandas_read("excel"),
            exact=False,
        )
        for kind, made in (("DataFrame", frame), ("Series", column))
    ),
    Case(
        "pandas:DataFrame.to_orc",
        "f.orc",
        lambda p, r: frame(r).reset_index(drop=True).to_orc(p),
        pandas_read("orc"),
    ),
    Case(
        "pandas:DataFrame.to_hdf",
        "f.h5",
        lambda p, r: frame(r).to_hdf(p, key="a"),
        pandas_read("hdf"),
        exact=False,
    ),
    *cases_of(
        "pandas:Series",
        column,
        [
            ("to_csv", "s.csv", pandas_read("csv")),
            ("to_json", "s.json", text),
            ("to_pickle", "s.pickle", pandas_read("pickle")),
            ("to_latex", "s.tex", text),
            ("to_markdown", "s.md", text),
            ("to_string", "s.txt", text),
        ],
    ),
    Case(
        "pandas:Series.to_hdf",
        "s.h5",
        lambda p, r: column(r).to_hdf(p, key="a"),
        pandas_read("hdf"),
        exact=False,
    ),
    Case(
        "pandas:to_pickle",
        "p.pickle",
        lambda p, r: m("pandas").to_pickle(frame(r), p),
        pandas_read("pickle"),
    ),
    *(
        Case(
            f"pandas.io.formats.style:Styler.to_{kind}",
            f"y.{kind}",
            lambda p, r, kind=kind: getattr(frame(r).style.set_uuid("u"), f"to_{kind}")(p),
            text,
        )
        for kind in ("html", "latex", "string")
    ),
    Case(
        "pandas.io.formats.style:Styler.to_excel",
        "y.xlsx",
        lambda p, r: frame(r).style.to_excel(p),
        pandas_read("excel"),
        exact=False,
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
    Case(
        "openpyxl.workbook.workbook:Workbook.save",
        "w.xlsx",
        lambda p, r: sheet(r).save(p),
        lambda p: m("openpyxl").load_workbook(p).active["A1"].value,
        exact=False,
    ),
]
