"""The listings that `autoddp patches` and `autoddp env` print."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from autoddp import __version__, launch
from autoddp.cli import tested
from autoddp.comm.world import ADDED
from autoddp.errors import BadInput
from autoddp.process import devices


def patches(chosen: Sequence[str] = ()) -> int:
    """Print all features, or the chosen ones, and their patches, in order of installation.

    Raises:
        BadInput: There is no feature of that name.
    """
    features = {feature.name: feature for feature in launch.features()}
    for name in chosen:
        if name not in features:
            raise BadInput(f"there is no feature {name}; the features are {', '.join(features)}")
    for feature in (features[name] for name in features if name in (chosen or features)):
        print(f"{feature.name} · --disable {feature.name} · {feature.without}")
        for item in feature.patches():
            optional = " (if installed)" if item.optional else ""
            print(f"{feature.name} · {', '.join(item.targets)}{optional} · {item.why}")
    return 0


def env() -> int:
    """Print versions, hardware, backends, and the variables of a job."""
    print(f"autoddp: {__version__}")
    for name in ("torch", "torchvision", "wrapt", "typer"):
        print(f"{name}: {installed(name)}")
    print(f"python: {platform.python_version()} on {platform.platform()}")
    of_torch = tested.words("torch", installed("torch"), tested.TORCH)
    of_python = tested.words("Python", platform.python_version(), tested.PYTHON)
    print(f"tested with: {of_torch}; {of_python}")
    print(f"cores: {len(os.sched_getaffinity(0))}")
    devices_found = devices.there(os.environ)
    names = f" ({devices.variable(devices_found.kind, os.environ)} {','.join(devices_found.names)})"
    print(f"GPUs: {len(devices_found.names)}" + (names if devices_found.names else ""))

    import torch
    import torch.distributed as dist

    print(f"CUDA of this torch: {torch.version.cuda or 'none'}")
    backends = {
        "gloo": dist.is_gloo_available(),
        "nccl": dist.is_nccl_available(),
        devices_found.backend: True,
    }
    print(f"backends: {', '.join(b for b, known in backends.items() if b and known) or 'none'}")
    job = [f"{name}={os.environ[name]}" for name in ADDED if name in os.environ]
    print(f"job: {' '.join(job) or 'none, a plain process'}")
    return 0


def installed(name: str) -> str:
    """Return the version of a package, or "not installed"."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
