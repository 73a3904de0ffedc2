"""The accelerators of this machine, shared among ranks without touching one in this process.

All that differs between kinds of accelerator stands here: the variable that shows a process some
of them, and how they are counted. Everything else goes by what torch says of its accelerator.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import entry_points
from itertools import takewhile
from multiprocessing import get_context

VARIABLES = {
    "cuda": "CUDA_VISIBLE_DEVICES",  # ROCm heeds it, too, behind its own
    "xpu": "ZE_AFFINITY_MASK",
    "npu": "ASCEND_RT_VISIBLE_DEVICES",
    "hpu": "HABANA_VISIBLE_MODULES",
}
# device files of drivers other than NVIDIA's
NODES = ("/dev/kfd", "/dev/davinci_manager", "/dev/accel", "/dev/dri/renderD128")
SLOW = 120.0  # seconds that a process may take to import torch and count


@dataclass(frozen=True)
class Devices:
    """The accelerators of this node's ranks.

    Attributes:
        kind: torch's word for them; empty: there are none, and ranks compute on CPUs.
        names: Names of the devices, as the variable that shows them takes them.
        backend: Name of their own backend; empty: they have none.
        why: Reason, for the user, why there are none.
    """

    kind: str = ""
    names: tuple[str, ...] = ()
    backend: str = ""
    why: str = "no GPU here"

    @property
    def of_a_rank(self) -> str:
        """Return in words what each rank computes on."""
        if not self.names:
            return f"CPUs ({self.why})"
        return f"{words(self.kind, 1)} ({self.backend or 'gloo'})"

    def of(self, local_rank: int) -> str:
        """Return the name of a rank's device; ranks share them where there are too few."""
        return self.names[local_rank % len(self.names)]


def words(kind: str, count: int) -> str:
    """Return a count of devices in words: `2 GPUs`, `1 npu device`."""
    one = "GPU" if kind in ("", "cuda", "xpu", "mps") else f"{kind} device"
    return f"{count} {one}{'s' * (count != 1)}"


def variable(kind: str, environ: Mapping[str, str]) -> str:
    """Return the name of the environment variable that shows a process its devices.

    A kind of device that registers itself with torch has a variable of its own name, by custom.
    """
    if kind == "cuda" and "HIP_VISIBLE_DEVICES" in environ:
        return "HIP_VISIBLE_DEVICES"
    return VARIABLES.get(kind, f"{kind.upper()}_VISIBLE_DEVICES")


def there(environ: Mapping[str, str]) -> Devices:
    """Ask the driver, or else a short-lived fork, which accelerators torch would find."""
    if next(iter(entry_points(group="torch.backends")), None) is None:
        found = count()
        if found:
            return Devices("cuda", tuple(visible(environ, found)), "nccl")
        if not any(map(os.path.exists, NODES)) and sys.platform != "darwin":
            return Devices()
    return _asked(environ)


def count() -> int:
    """Count the GPUs of NVIDIA's driver, by NVML: it does not make this process a CUDA process."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return 0  # no driver
    if nvml.nvmlInit_v2() != 0:
        return 0
    found = ctypes.c_uint()
    error = nvml.nvmlDeviceGetCount_v2(ctypes.byref(found))
    nvml.nvmlShutdown()
    return 0 if error else found.value


def visible(environ: Mapping[str, str], there: int) -> list[str]:
    """Return the names of the GPUs that CUDA will show, as CUDA_VISIBLE_DEVICES takes them.

    CUDA stops reading the variable at the first entry that names no device.
    """
    known = [str(index) for index in range(there)]
    if "CUDA_VISIBLE_DEVICES" not in environ:
        return known
    names = [name.strip() for name in environ["CUDA_VISIBLE_DEVICES"].split(",")]
    return list(takewhile(lambda n: n in known or n.startswith(("GPU-", "MIG-")), names))


def _asked(environ: Mapping[str, str]) -> Devices:
    """Have a fork, which may touch them, count the devices; what it cannot count is not used."""
    with get_context("fork").Pool(1) as child, suppress(Exception):
        kind, number, backend = child.apply_async(_count).get(SLOW)
        given = environ.get(variable(kind, environ), "").split(",") if number else []
        named = [name.strip() for name in given if name.strip()]
        names = named[:number] if len(named) >= number else [str(index) for index in range(number)]
        return Devices(kind, tuple(names), backend)
    return Devices()


def _count() -> tuple[str, int, str]:
    """Return which accelerators torch finds, how many, and the name of their own backend."""
    import torch
    import torch.distributed as dist

    from autoddp import torch_internals

    kind = torch_internals.accelerator()
    number = 0 if kind is None else torch.accelerator.device_count()
    if kind is None or not number:
        return "", 0, ""
    with suppress(ValueError):
        backend = str(dist.get_default_backend_for_device(kind.type))
        return kind.type, number, "" if backend == "gloo" else backend
    return kind.type, number, ""
