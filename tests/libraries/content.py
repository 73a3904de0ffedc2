"""The content of files that libraries write, as values or as text: what can be compared."""

from __future__ import annotations

import io
import re
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autoddp.tools.verify.load import Unpickler, load

TIMED = re.compile("runtime|per_second")  # of a scalar's name


def read(path: Path) -> Any:
    """The content of a file by its name, or by what its bytes are.

    Raises:
        Exception: Nobody knows this kind, or it is broken.
    """
    for part, reader in KINDS.items():
        if part in path.name:
            return reader(path)
    return load(path)


def _safetensors(path: Path) -> Any:
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        metadata = dict(sorted((file.metadata() or {}).items()))  # kept in any order
        return metadata, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _events(path: Path) -> str:
    """TensorBoard's records, without times."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    shown = []
    for event in LegacyEventFileLoader(str(path)).Load():
        event.ClearField("wall_time")
        for value in event.summary.value:
            plugin = value.metadata.plugin_data
            if plugin.plugin_name == "hparams":  # its bytes have a dictionary in any order
                shown.append(str(HParamsPluginData.FromString(plugin.content)))
                plugin.content = b""
            if TIMED.search(value.tag):
                value.ClearField("simple_value")
        shown.append(str(event))
    return "".join(shown)


def _arrow(path: Path) -> Any:
    import pyarrow as pa

    with pa.memory_map(str(path)) as source:
        for opens in (pa.ipc.open_stream, pa.ipc.open_file):
            try:
                return opens(source).read_all().to_pylist()
            except pa.ArrowInvalid:
                source.seek(0)
    raise ValueError(f"{path} is no table of Arrow")


def _parquet(path: Path) -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path).to_pylist()


def _database(path: Path) -> str:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        return "\n".join(database.iterdump())


def _pickle(path: Path) -> Any:
    if zipfile.is_zipfile(path):
        return load(path)
    return Unpickler(io.BytesIO(path.read_bytes())).load()


def _joblib(path: Path) -> Any:
    import joblib

    return joblib.load(path)


def _keras(path: Path) -> Any:
    """Weights, and the configuration without addresses of objects."""
    with zipfile.ZipFile(path) as archive:
        config = re.sub(rb'"shared_object_id": \d+', b"", archive.read("config.json"))
        return config, _hdf5(io.BytesIO(archive.read("model.weights.h5")))


def _hdf5(path: Path | io.BytesIO) -> Any:
    import h5py

    found: dict[str, Any] = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, x: found.update({name: x[()]} if hasattr(x, "shape") else {}))
    return found


KINDS: dict[str, Callable[[Path], Any]] = {
    ".safetensors": _safetensors,
    "events.out.tfevents.": _events,
    ".arrow": _arrow,
    ".parquet": _parquet,
    ".db": _database,
    ".sqlite": _database,
    ".joblib": _joblib,
    ".pkl": _pickle,
    ".h5": _hdf5,
    ".keras": _keras,
}
