"""The listings that `autoddp patches` and `autoddp env` print."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from autoddp import __version__, launch
from autoddp.comm.world import ADDED
from autoddp.process import devices


def patches() -> int:
    """Print all features and their patches, in the order of installing.

    A feature's line says what is so without it; a patch's line names its targets and its reason.
    """
    for feature in launch.features():
        print(f"{feature.name} · --disable {feature.name} · {feature.without}")
        for item in feature.patches():
            optional = " (if installed)" if item.optional else ""
            print(f"{item.feature} · {', '.join(item.targets)}{optional} · {item.why}")
    return 0


def env() -> int:
    """Print versions, machine, GPUs, backends, and the variables of a job."""
    print(f"autoddp: {__version__}")
    for name in ("torch", "torchvision", "wrapt", "typer"):
        print(f"{name}: {installed(name)}")
    print(f"python: {platform.python_version()} on {platform.platform()}")
    print(f"cores: {len(os.sched_getaffinity(0))}")
    found = devices.there(os.environ)
    given = f" ({devices.variable(found.kind, os.environ)} {','.join(found.names)})"
    print(f"GPUs: {len(found.names)}" + (given if found.names else ""))

    import torch
    import torch.distributed as dist

    print(f"CUDA of this torch: {torch.version.cuda or 'none'}")
    there = {
        "gloo": dist.is_gloo_available(),
        "nccl": dist.is_nccl_available(),
        found.backend: True,
    }
    print(f"backends: {', '.join(name for name, yes in there.items() if name and yes) or 'none'}")
    job = [f"{name}={os.environ[name]}" for name in ADDED if name in os.environ]
    print(f"job: {' '.join(job) or 'none, a plain process'}")
    return 0


def installed(name: str) -> str:
    """Return the version of a package, or the words "not installed"."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
