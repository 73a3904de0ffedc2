"""The shape of the package: imports go down only, files and functions stay small."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest
from torch.utils._device import _device_constructors

from autoddp.process.features import FEATURES
from tests.support.cli import ROOT, run_python

PACKAGE = Path(ROOT) / "autoddp"
FILES = sorted(PACKAGE.rglob("*.py"))

# Folders and files below `autoddp`, from the top: a module imports from its layer or those below.
LAYERS = [
    {"__main__"},
    {"cli", "listing"},
    {"tools"},
    {"decorator"},
    {"launch"},
    {"process"},
    {"training"},
    {"effects"},
    {"view"},
    {"comm"},
    {"options", "report", "patching", "own_operations"},
    {"errors", "allocator", "inductor", "own_hooks", "torch_internals"},
]


def name_of(path: Path) -> str:
    """`features.files`, as below `autoddp`."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def layer_of(name: str) -> int:
    """How far down; the package itself is at the top, since it only points to others."""
    root = name.partition(".")[0]
    return (
        -1 if root == "__init__" else next(at for at, layer in enumerate(LAYERS) if root in layer)
    )


def nodes(tree: ast.AST, at_run_time: bool):
    """Import statements; of those under `if TYPE_CHECKING` none, within functions if asked."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.FunctionDef) and not at_run_time:
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        yield from nodes(node, at_run_time)


def imports(path: Path, at_run_time: bool = True) -> set[str]:
    """The full names that a file imports."""
    found: set[str] = set()
    for node in nodes(ast.parse(path.read_text()), at_run_time):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif node.module is not None:
            for alias in node.names:
                inner = PACKAGE.parent / node.module.replace(".", "/") / alias.name
                is_module = inner.with_suffix(".py").exists() or inner.is_dir()
                found.add(f"{node.module}.{alias.name}" if is_module else node.module)
    return found


def ours(path: Path) -> set[str]:
    """Those of the package, as below `autoddp`."""
    return {name.partition(".")[2] for name in imports(path) if name.startswith("autoddp.")}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_go_down_only(path):
    mine = layer_of(name_of(path))
    above = {name for name in ours(path) if layer_of(name) < mine}
    assert not above, f"{name_of(path)} imports {above} from above"


def test_no_modules_import_each_other():
    """No circle: whoever is imported can be read without whoever imports it."""
    known = {name_of(path) for path in FILES}
    left = {name_of(path): ours(path) & known - {name_of(path)} for path in FILES}
    while ends := {name for name, led in left.items() if not led & left.keys()}:
        left = {name: led for name, led in left.items() if name not in ends}
    assert not left, "these import each other, or what does"


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_no_feature_imports_another(feature):
    others = {other.__module__.partition(".")[2] for other in FEATURES} - {
        feature.__module__.partition(".")[2]
    }
    assert not ours(Path(sys.modules[feature.__module__].__file__)) & others


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_are_small(path):
    assert len(path.read_text().splitlines()) < 300


def test_the_spine_that_the_docs_name_is_there_and_short():
    text = Path(ROOT, "docs", "architecture.md").read_text()
    spine = re.findall(r"^\d+\. `(.*?)`", text, flags=re.M)
    assert len(spine) == 9
    assert sum(len(Path(ROOT, name).read_text().splitlines()) for name in spine) < 1800
    (layers,) = re.findall(r"^Folders are layers, from the top: (.*?);", text, flags=re.M)
    folders = [next(iter(layer)) for layer in LAYERS if len(layer) == 1 and layer != {"__main__"}]
    assert re.findall(r"`(\w+)`", layers) == folders


def test_no_property_computes_under_a_lock():
    """A fork of one thread keeps what another holds; that of functools is of all objects."""
    held = [
        name_of(path) for path in FILES if re.search(r"cached_property\b(?!`)", path.read_text())
    ]
    assert not held


PRIVATE = re.compile(r"^torch(\.\w+)*\.(_(?!dynamo|inductor|_)\w+|distributed_c10d)")
KNOWN = {
    "torch.Tensor._make_wrapper_subclass": "how a subclass is written",
    "torch.utils._pytree": "read by the whole world",
    "torch.utils.data": "parts of a loader, which are patched by these names, too",
}


def private(path: Path):
    """The private names of torch that a file stands on, also by names that it gives them."""
    tree, full = ast.parse(path.read_text()), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            full |= {alias.asname: alias.name for alias in node.names if alias.asname}
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = {
                alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
            }
            full |= names
            yield from names.values()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, _, rest = ast.unparse(node).partition(".")
            yield f"{full.get(first, first)}.{rest}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_private_names_of_torch_have_one_place(path):
    found = {name for name in private(path) if PRIVATE.match(name)}
    known = {name for name in found if any(name.startswith(part) for part in KNOWN)}
    assert name_of(path) == "torch_internals" or found == known


CONSTRUCTORS = {f.__name__ for f in _device_constructors()} - {"from_file"}
AS_THE_SCRIPT = {
    "training.loading.sampling",
    "view.draws",
}  # what torch itself makes on whatever device is the default


def without_device(path: Path):
    """The lines that make a tensor on whatever device the script has made the default."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        ours = ast.unparse(node.func.value) == "torch" and node.func.attr in CONSTRUCTORS
        if ours and not any(keyword.arg in ("device", None) for keyword in node.keywords):
            yield f"{node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_tensors_of_ours_lie_where_we_say(path):
    """Else `torch.set_default_device` puts what ranks say to each other onto an accelerator."""
    if name_of(path) not in AS_THE_SCRIPT:
        assert not list(without_device(path))


def test_nothing_on_the_way_to_help_or_to_a_launch_imports_torch():
    """The launcher sets what torch reads at its import."""
    check = (
        "import sys, autoddp, autoddp.launch\n"
        "from autoddp.cli import parse\nparse(['run', '--help'])\n"
        "autoddp.rank()\nassert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    done = run_python("-c", check)
    assert done.rc == 0, done.err


def test_the_public_names_are_found():
    check = (
        "import autoddp\n"
        "print(autoddp.rank(), autoddp.world_size(), autoddp.__all__)\n"
        "try: autoddp.none\nexcept AttributeError as e: print(e)"
    )
    done = run_python("-c", check)
    assert done.out == (
        "0 1 ['__version__', 'distributed', 'rank', 'rowwise', 'world_size']\n"
        "module 'autoddp' has no attribute 'none'\n"
    ), done.err
