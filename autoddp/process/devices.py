"""Which accelerators are there and who gets which, without touching one in this process.

All that differs between kinds of accelerator stands here: the variable that shows a process some of them, and
how they are counted. Everything else goes by what torch says of the one that it knows.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points

from autoddp.errors import BadInput

VARIABLES = {
    "cuda": "CUDA_VISIBLE_DEVICES",  # ROCm heeds it, too, behind its own
    "xpu": "ZE_AFFINITY_MASK",
    "npu": "ASCEND_RT_VISIBLE_DEVICES",
    "hpu": "HABANA_VISIBLE_MODULES",
}
NODES = ("/dev/kfd", "/dev/davinci_manager", "/dev/accel", "/dev/dri/renderD128")  # of drivers but NVIDIA's
SLOW = 120.0  # seconds that a process may take to import torch and count
PLAIN = ("auto", "gloo")  # backends that ask for nothing
OWN = "native"  # the accelerator's, by whatever name


@dataclass(frozen=True)
class There:
    """What this process may compute on besides CPUs: torch's word for it, names, and its backend's name."""

    kind: str = ""
    names: tuple[str, ...] = ()
    backend: str = ""

    @property
    def words(self) -> str:
        """How many."""
        return words(self.kind, len(self.names))


@dataclass(frozen=True)
class Devices:
    """What the ranks of this node compute on, and what they shall talk by, as far as the node knows.

    Attributes:
        kind: torch's word for the accelerator; empty: CPUs.
        backend: What it talks by; empty: gloo, on copies.
        why: What is to be said where there is none.
        visible: The names of each local rank's, as the variable takes them; none: leave it alone.
        wanted: `--backend`.
    """

    kind: str = ""
    backend: str = ""
    why: str = ""
    visible: tuple[str, ...] = ()
    wanted: str = "auto"


def words(kind: str, count: int) -> str:
    """So many of a kind: `2 GPUs`, `1 npu device`."""
    one = "GPU" if kind in ("", "cuda", "xpu", "mps") else f"{kind} device"
    return f"{count} {one}{'s' * (count != 1)}"


def variable(kind: str, environ: Mapping[str, str]) -> str:
    """The one that shows a process its devices; who registers itself with torch has its own by custom."""
    if kind == "cuda" and "HIP_VISIBLE_DEVICES" in environ:
        return "HIP_VISIBLE_DEVICES"
    return VARIABLES.get(kind, f"{kind.upper()}_VISIBLE_DEVICES")


def there(environ: Mapping[str, str]) -> There:
    """What torch would find, asked of the driver, or else of a process that is thrown away."""
    if next(iter(entry_points(group="torch.backends")), None) is None:
        found = count()
        if found:
            return There("cuda", tuple(visible(environ, found)), "nccl")
        if not any(map(os.path.exists, NODES)) and sys.platform != "darwin":
            return There()
    return _asked(environ)


def count() -> int:
    """The GPUs that NVIDIA's driver shows; NVML answers without making this process a CUDA process."""
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
    """The names of the GPUs that CUDA will show, as CUDA_VISIBLE_DEVICES takes them.

    As CUDA reads the variable: it ends at the first entry that names no device; and it shows none where one
    is named twice.
    """
    if "CUDA_VISIBLE_DEVICES" not in environ:
        return [str(index) for index in range(there)]
    names: list[str] = []
    for name in environ["CUDA_VISIBLE_DEVICES"].split(","):
        name = name.strip()
        known = name.isdecimal() and int(name) < there
        if not known and not (there and name.startswith(("GPU-", "MIG-"))):
            break
        names.append(name)
    return names if len(set(names)) == len(names) else []


def _asked(environ: Mapping[str, str]) -> There:
    """By a child that may touch the devices: a fork, since torch may be imported here already."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it does nothing that a thread could hold
        pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.write(writing, json.dumps(_count_in_torch()).encode())
        os._exit(0)
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], SLOW)
    said = os.read(reading, 1 << 12) if ready else b""
    os.close(reading)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    kind, number, backend = json.loads(said) if said else ("", 0, "")
    given = environ.get(variable(kind, environ), "").split(",") if kind else []
    named = [name.strip() for name in given if name.strip()]
    names = named[:number] if len(named) >= number else [str(index) for index in range(number)]
    return There(kind if number else "", tuple(names), backend)


def _count_in_torch() -> tuple[str, int, str]:
    import torch
    import torch.distributed as dist

    kind = torch.accelerator.current_accelerator()
    if kind is None:
        return "", 0, ""
    try:
        backend = dist.get_default_backend_for_device(kind.type)
    except ValueError:
        backend = ""
    return kind.type, torch.accelerator.device_count(), "" if backend == "gloo" else str(backend)


def lacking(found: There, wanted: str) -> str:
    """What speaks against a backend by its name; empty if nothing does.

    Where there is nothing at all it depends on the ranks: see `share`.
    """
    if wanted in PLAIN or not found.names:
        return ""
    if not found.backend:
        return f"--backend is {wanted}, but {found.kind} devices have none of their own; use --backend gloo"
    if wanted not in (OWN, found.backend):
        return (
            f"--backend is {wanted}, but this machine shows {found.words}, which "
            f"{'talks' if len(found.names) == 1 else 'talk'} by {found.backend}; use --backend {OWN} or gloo"
        )
    return ""


def without_cuda(wanted: str) -> Devices:
    """What is left where torch was built without CUDA.

    Raises:
        BadInput: nccl is asked for.
    """
    if wanted not in PLAIN:
        raise BadInput(
            f"--backend is {wanted}, but this torch is built without it; install a torch with CUDA, or "
            "use --backend gloo"
        )
    return Devices(why="this torch is built without CUDA", wanted=wanted)


def share(found: There, ranks: int, wanted: str, each: int = 1, own: bool = False) -> Devices:
    """Give each of the node's ranks its device, or `each` of them.

    Args:
        found: What this process may compute on.
        ranks: Of this node.
        wanted: `--backend`.
        each: Devices of a rank.
        own: Another launcher has started the ranks, and may have shown each other ones: what these are is
            known once all have met.

    Raises:
        BadInput: A backend is asked for that needs a device for each rank, and some rank has none; or each
            shall have several.
    """
    names = found.names
    if each > 1 and len(names) < ranks * each and not (own and len(names) == each):
        raise BadInput(
            f"--gpus-per-rank is {each}, which with {ranks} rank{'s' * (ranks != 1)} takes {ranks * each} "
            f"GPUs, but this machine shows {found.words}"
            + ("; give fewer of either" if names else "; leave it out")
        )
    against = lacking(found, wanted)
    if not against and wanted not in PLAIN and len(names) < ranks and not (own and names):
        against = (
            f"--backend is {wanted} with {ranks} rank{'s' * (ranks != 1)}, but this machine shows "
            f"{found.words}, and {found.backend.upper() or wanted.upper()} needs one for each rank; use "
            "--backend gloo" + (f" or --nproc {len(names)}" if names else "")
        )
    if against:
        raise BadInput(against)
    if not names:
        return Devices(why="no GPU here", wanted=wanted)
    given = tuple(
        ",".join(names[(rank * each + k) % len(names)] for k in range(each)) for rank in range(ranks)
    )
    return Devices(found.kind, found.backend, "", given, wanted)
