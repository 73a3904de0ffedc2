"""The table of functions that write a file, named by an argument, without Python's `open`.

Rows of packages that are never imported cost nothing; names that a version lacks are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Writer:
    """A function that writes a file or a folder, or a class whose objects keep a file open.

    Attributes:
        target: The function or class, as "module:Dotted.path".
        argument: The argument that names the file. If it is None or an open file, the call is not
            changed.
        position: The position of that argument if the function, written in C, has no signature.
        mode: The mode without an argument `mode`; "a" keeps the old content.
        blind: Whether it ignores the file's name and old content, so that /dev/null serves as well.
        silent: Whether it returns nothing.
    """

    target: str
    argument: str
    position: int | None = None
    mode: str = "w"
    blind: bool = False
    silent: bool = False


def rows(owner: str, names: str, argument: str, **more: bool | int | str) -> tuple[Writer, ...]:
    """Return a row for each of `names`, which are functions of a module or methods of a class."""
    dot = "." if ":" in owner else ":"
    return tuple(Writer(f"{owner}{dot}{name}", argument, **more) for name in names.split())  # type: ignore[arg-type]


# Functions that use Python's `open` need no row, unless a half-written file is a lost checkpoint.
FILES = (
    *rows("torch", "save", "f", blind=True),
    *rows("torch.serialization", "save", "f", blind=True),
    *rows("numpy", "save savez savez_compressed", "file"),
    *rows("numpy", "savetxt", "fname"),
    *rows("scipy.io", "mmwrite", "target"),
    *rows("torch.jit", "save", "f"),
    *rows("torch.jit:ScriptModule", "save", "f"),
    *rows("torch.jit:RecursiveScriptModule", "save", "f"),
    *rows("torch.jit:ScriptFunction", "save", "filename", position=0),
    *rows("torch.export", "save", "f"),
    *rows("torch.profiler.profiler:_KinetoProfile", "export_chrome_trace", "path"),
    *rows("torch.autograd.profiler:profile", "export_chrome_trace", "path"),
    *rows("torchvision.io", "write_png write_jpeg write_video write_file", "filename"),
    *rows("torchaudio", "save", "uri"),
    *rows("safetensors.torch", "save_file", "filename", silent=True),
    *rows("safetensors.torch", "save_model", "filename"),
    *rows("safetensors.numpy", "save_file", "filename"),
    *rows("tokenizers:Tokenizer", "save", "path", position=0),
    *rows("cv2", "imwrite imwritemulti", "filename", position=0),
    *rows("soundfile", "write", "file"),
    *rows("xgboost:Booster", "save_model", "fname"),
    *rows("lightgbm:Booster", "save_model", "filename"),
    *rows("faiss", "write_index", "fname", position=1),
    *rows("pandas:DataFrame", "to_parquet", "path"),
    *rows("pyarrow.parquet", "write_table", "where"),
    *rows("pyarrow.csv", "write_csv", "output_file"),
    *rows("pyarrow.feather", "write_feather", "dest"),
    *rows("pyarrow.orc", "write_table", "where"),
    *rows("polars:DataFrame", "write_csv write_parquet write_json write_ndjson", "file"),
    *rows("polars:DataFrame", "write_ipc write_ipc_stream write_avro", "file"),
    *rows("polars:LazyFrame", "sink_parquet sink_csv sink_ipc sink_ndjson", "path"),
    *rows("pyarrow.parquet", "write_to_dataset", "root_path"),
    *rows("pyarrow.dataset", "write_dataset", "base_dir"),
)
WRITERS = {row.target: row for row in FILES}

# Classes whose objects keep a file open, to read or write it.
HELD = (
    Writer("h5py:File.__init__", "name", mode="r"),
    Writer("pandas:HDFStore.__init__", "path", mode="a"),
    Writer("pyarrow.parquet:ParquetWriter.__init__", "where"),
    Writer("pyarrow:memory_map", "path", position=0, mode="r"),
    Writer("soundfile:SoundFile.__init__", "file", mode="r"),
    Writer("torch.package:PackageExporter.__init__", "f"),
    Writer("numpy:memmap.__new__", "filename", mode="r+"),
    Writer("numpy.lib.format:open_memmap", "filename", mode="r+"),
    Writer("sqlite3:connect", "database", position=0, mode="a"),
    Writer("sqlite3.dbapi2:connect", "database", position=0, mode="a"),
)
HOLDERS = {row.target: row for row in HELD}
