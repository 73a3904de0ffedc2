"""Compiles the device by plain g++ at first use, once for each torch, Python and source."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
SOURCES = sorted(HERE.glob("*.cpp"))
TORCH = Path(torch.__file__).parent
ABI = int(torch.compiled_with_cxx11_abi())  # of strings; torch's wheels have the new one since 2.7
FLAGS = ["-std=c++20", "-O1", "-fPIC", "-w", f"-D_GLIBCXX_USE_CXX11_ABI={ABI}"]
# torch up to 2.8 says of what kind its own pybind11 is, or it would not know the types of another
FLAGS += [
    f'-DPYBIND11_{name}="{value}"'
    for name in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI")
    if (value := getattr(torch._C, f"_PYBIND11_{name}", None))
]


def lacking() -> str:
    """Why the device cannot be built; empty if it can."""
    if not shutil.which("g++"):
        return "no compiler: g++ is not installed"
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        return "no Python.h: the headers of this Python are not installed"
    return ""


def library() -> Path:
    """The compiled device; another worker that builds it is waited for."""
    kind = hashlib.sha256(f"{torch.__version__} {sys.version} {FLAGS}".encode())
    for path in [*SOURCES, HERE / "device.h"]:
        kind.update(path.read_bytes())
    cache = Path(
        os.environ.get("XDG_CACHE_HOME") or tempfile.gettempdir(), f"autoddp-tests-{os.getuid()}"
    )
    folder = cache / f"simulated-{torch.__version__}-{kind.hexdigest()[:12]}"
    made = folder / "_simulated.so"
    if made.exists():
        return made
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            _compile(folder, made)
    return made


def _compile(folder: Path, made: Path) -> None:
    includes = [
        TORCH / "include",
        TORCH / "include/torch/csrc/api/include",
        sysconfig.get_paths()["include"],
    ]
    given = [f"-I{path}" for path in includes]
    objects = [folder / f"{path.stem}.o" for path in SOURCES]
    running = [
        subprocess.Popen(
            ["g++", *FLAGS, *given, "-c", str(path), "-o", str(out)], stderr=subprocess.PIPE
        )
        for path, out in zip(SOURCES, objects, strict=True)
    ]
    for each in running:
        _, said = each.communicate()
        if each.returncode:
            raise RuntimeError(said.decode()[-4000:])
    new = folder / "new.so"
    lib = TORCH / "lib"
    links = [f"-L{lib}", "-lc10", "-ltorch_cpu", "-ltorch_python", f"-Wl,-rpath,{lib}"]
    subprocess.run(["g++", "-shared", *map(str, objects), "-o", str(new), *links], check=True)
    new.rename(made)


def load() -> Any:
    """The compiled module."""
    loader = importlib.machinery.ExtensionFileLoader("_simulated", str(library()))
    spec = importlib.util.spec_from_loader("_simulated", loader)
    assert spec is not None
    found = importlib.util.module_from_spec(spec)
    loader.exec_module(found)
    return found
