"""The tables of functions that write or read a file by themselves, which an argument names.

A row of a package that is never imported costs nothing; a row of a name that a version lacks, too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Writer:
    """A function that writes a file, or fills a folder, or a class whose objects hold one open.

    Attributes:
        target: The place where it is found, as "module:Dotted.path".
        argument: The argument that names the file. What is no path (None, an open file) is left
            alone.
        position: The place of that argument if the function, written in C, tells no names.
        folder: Whether the argument names a folder that is filled.
        mode: The mode that it writes in unless its argument `mode` says; "a" keeps what was there.
        blind: Whether it looks neither at the file's name nor reads it, so that /dev/null will do.
    """

    target: str
    argument: str
    position: int | None = None
    folder: bool = False
    mode: str = "w"
    blind: bool = False


def rows(owner: str, names: str, argument: str, **more: bool | int | str) -> tuple[Writer, ...]:
    """Return a row for each of `names`, which are functions of a module or methods of a class."""
    dot = "." if ":" in owner else ":"
    return tuple(Writer(f"{owner}{dot}{name}", argument, **more) for name in names.split())  # type: ignore[arg-type]


CHECKPOINT = Writer("torch:save", "f", blind=True)

ARRAYS = (
    *rows("numpy", "save savez savez_compressed", "file"),
    *rows("numpy", "savetxt", "fname"),
    *rows("numpy:ndarray", "tofile", "fid", position=0),
    *rows("numpy:ndarray", "dump", "file", position=0),
    *rows("scipy.io", "savemat", "file_name"),
    *rows("scipy.io", "mmwrite", "target"),
    *rows("scipy.io.wavfile", "write", "filename"),
    *rows("scipy.sparse", "save_npz", "file"),
    *rows("joblib", "dump", "filename"),
    *rows("sklearn.datasets", "dump_svmlight_file", "f"),
)
PICTURES = (
    *rows("PIL.Image:Image", "save", "fp"),
    *rows("matplotlib.figure:Figure", "savefig", "fname"),
    *rows("matplotlib.image", "imsave", "fname"),
    *rows("matplotlib.animation:Animation", "save", "filename"),
    *rows("torchvision.utils", "save_image", "fp"),
    *rows("torchvision.io", "write_png write_jpeg write_video write_file", "filename"),
    *rows("cv2", "imwrite imwritemulti", "filename", position=0),
    *rows("imageio", "imwrite imsave mimwrite mimsave", "uri"),
    *rows("imageio.v2", "imwrite imsave mimwrite mimsave", "uri"),
    *rows("imageio.v3", "imwrite", "uri"),
    *rows("skimage.io", "imsave", "fname"),
    *rows("tifffile", "imwrite", "file"),
    *rows("plotly.io", "write_html write_image write_json", "file"),
    *rows("trimesh:Trimesh", "export", "file_obj"),
    *rows("trimesh:Scene", "export", "file_obj"),
)
SOUNDS = (
    *rows("soundfile", "write", "file"),
    *rows("torchaudio", "save", "uri"),
)
PRETRAINED = (
    "transformers.modeling_utils:PreTrainedModel",
    "transformers.tokenization_utils_base:PreTrainedTokenizerBase",
    "transformers.configuration_utils:PretrainedConfig",
    "transformers.processing_utils:ProcessorMixin",
    "huggingface_hub.hub_mixin:ModelHubMixin",
)
MODELS = (
    *rows("torch.jit", "save", "f"),
    *rows("torch.jit:ScriptModule", "save", "f"),
    *rows("torch.jit:RecursiveScriptModule", "save", "f"),
    *rows("torch.jit:ScriptFunction", "save", "filename", position=0),
    *rows("torch.export", "save", "f"),
    *rows("torch.onnx", "export", "f"),
    *rows("torch.profiler.profiler:_KinetoProfile", "export_chrome_trace export_stacks", "path"),
    *rows("torch.autograd.profiler:profile", "export_chrome_trace export_stacks", "path"),
    *rows("torch.distributed.checkpoint", "save", "checkpoint_id", folder=True),
    *rows("safetensors.torch", "save_file save_model", "filename"),
    *rows("safetensors.numpy", "save_file", "filename"),
    *rows("onnx", "save save_model", "f"),
    *rows("xgboost:Booster", "save_model", "fname"),
    *rows("xgboost:XGBModel", "save_model", "fname"),
    *rows("lightgbm:Booster", "save_model", "filename"),
    *(
        row
        for owner in PRETRAINED
        for row in rows(owner, "save_pretrained", "save_directory", folder=True)
    ),
    *rows("tokenizers:Tokenizer", "save", "path", position=0),
    *rows("faiss", "write_index", "fname", position=1),
    *rows("omegaconf:OmegaConf", "save", "f"),
)
TABLES = (
    *rows("pandas:DataFrame", "to_csv to_json", "path_or_buf"),
    *rows("pandas:DataFrame", "to_pickle to_parquet to_feather to_stata to_orc", "path"),
    *rows("pandas:DataFrame", "to_html to_latex to_markdown to_string", "buf"),
    *rows("pandas:DataFrame", "to_xml", "path_or_buffer"),
    *rows("pandas:DataFrame", "to_excel", "excel_writer"),
    *rows("pandas:DataFrame", "to_hdf", "path_or_buf", mode="a"),
    *rows("pandas:Series", "to_csv to_json", "path_or_buf"),
    *rows("pandas:Series", "to_pickle", "path"),
    *rows("pandas:Series", "to_latex to_markdown to_string", "buf"),
    *rows("pandas:Series", "to_excel", "excel_writer"),
    *rows("pandas:Series", "to_hdf", "path_or_buf", mode="a"),
    *rows("pandas", "to_pickle", "filepath_or_buffer"),
    *rows("pandas.io.formats.style:Styler", "to_html to_latex to_string", "buf"),
    *rows("pandas.io.formats.style:Styler", "to_excel", "excel_writer"),
    *rows("pyarrow.parquet", "write_table", "where"),
    *rows("pyarrow.parquet", "write_to_dataset", "root_path", folder=True),
    *rows("pyarrow.dataset", "write_dataset", "base_dir", folder=True),
    *rows("pyarrow.csv", "write_csv", "output_file"),
    *rows("pyarrow.feather", "write_feather", "dest"),
    *rows("pyarrow.orc", "write_table", "where"),
    *rows(
        "polars:DataFrame",
        "write_csv write_parquet write_json write_ndjson write_ipc write_ipc_stream write_avro",
        "file",
    ),
    *rows("polars:DataFrame", "write_excel", "workbook"),
    *rows("polars:LazyFrame", "sink_parquet sink_csv sink_ipc sink_ndjson", "path"),
    *rows("openpyxl.workbook.workbook:Workbook", "save", "filename"),
)
DATA = (
    *rows("datasets.arrow_dataset:Dataset", "save_to_disk", "dataset_path", folder=True),
    *rows("datasets.dataset_dict:DatasetDict", "save_to_disk", "dataset_dict_path", folder=True),
)
WRITERS = {row.target: row for row in (*ARRAYS, *PICTURES, *SOUNDS, *MODELS, *DATA, *TABLES)}

# The makers of objects that hold their file open; they may read it, and write on.
HELD = (
    Writer("h5py:File.__init__", "name", mode="r"),
    Writer("pandas:HDFStore.__init__", "path", mode="a"),
    Writer("pyarrow.parquet:ParquetWriter.__init__", "where"),
    Writer("soundfile:SoundFile.__init__", "file", mode="r"),
    Writer("torch.package:PackageExporter.__init__", "f"),
    Writer("numpy:memmap.__new__", "filename", mode="r+"),
    Writer("numpy.lib.format:open_memmap", "filename", mode="r+"),
)
HOLDERS = {row.target: row for row in HELD}

# Functions that read the file which an argument names without asking Python's open for it, or look
# first whether it is there.
READERS = (
    "torch:load",
    "torch.serialization:load",
    "torch.jit:load",
    "torch.jit._serialization:load",
    "numpy:loadtxt",
    "numpy:genfromtxt",
    "h5py:File.__init__",
    "safetensors:safe_open",
    "safetensors.torch:load_file",
    "safetensors.numpy:load_file",
    "pandas:read_parquet",
    "pandas.io.parquet:read_parquet",
    "pyarrow.parquet:read_table",
    "pyarrow.parquet:ParquetFile.__init__",
    "pyarrow:memory_map",
    "pyarrow.feather:read_table",
    "pandas:read_feather",
    "pandas.io.feather_format:read_feather",
    "cv2:imread",
    "torchvision.io:read_file",
    "torchvision.io.image:read_file",
    "torchvision.io:read_image",
    "torchvision.io.image:read_image",
)
# The names that these functions give that argument.
PATHS = ("f", "fname", "filename", "path", "source", "name")
