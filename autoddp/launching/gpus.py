"""How many GPUs there are and who gets which, without touching CUDA in this process."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

from autoddp.errors import BadInput


@dataclass(frozen=True)
class Devices:
    """What the ranks of this node compute on: the backend, why it is that one, a GPU for each."""

    backend: str
    why: str
    visible: tuple[str, ...] = ()  # CUDA_VISIBLE_DEVICES of each local rank; none: leave it alone
    part: float = 1.0  # of its GPU's memory that a rank may take


def count() -> int:
    """The GPUs that the driver shows; NVML answers without making this process a CUDA process."""
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

    As CUDA reads the variable: it ends at the first entry that names no device.
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
    return names


def without_cuda(wanted: str) -> Devices:
    """What is left where torch was built without CUDA.

    Raises:
        BadInput: nccl is asked for.
    """
    if wanted == "nccl":
        raise BadInput(
            "--backend is nccl, but this torch is built without it; install a torch with CUDA, or "
            "use --backend gloo"
        )
    return Devices("gloo", "this torch is built without CUDA")


def share(names: list[str], ranks: int, wanted: str, each: int = 1) -> Devices:
    """Give each of the node's ranks its GPU, or `each` of them.

    Raises:
        BadInput: nccl is asked for, and some rank has no GPU of its own; or each shall have several.
    """
    here = f"{len(names)} GPU{'s' * (len(names) != 1)}"
    if each > 1 and len(names) < ranks * each:
        raise BadInput(
            f"--gpus-per-rank is {each}, which with {ranks} rank{'s' * (ranks != 1)} takes {ranks * each} "
            f"GPUs, but this machine shows {here}" + ("; give fewer of either" if names else "; leave it out")
        )
    if wanted == "nccl" and len(names) < ranks:
        raise BadInput(
            f"--backend is nccl with {ranks} rank{'s' * (ranks != 1)}, but this machine shows "
            f"{here}, and NCCL needs one for each rank; use --backend gloo"
            + (f" or --nproc {len(names)}" if names else "")
        )
    if not names:
        return Devices("gloo", "no GPU here")
    given = tuple(
        ",".join(names[(rank * each + k) % len(names)] for k in range(each)) for rank in range(ranks)
    )
    if len(names) < ranks:
        most = -(-ranks // len(names))  # ranks on one GPU
        why = f"{ranks} ranks share {here}, each at most 1/{most} of the memory"
        return Devices("gloo", why, given, 1 / most)
    if wanted == "gloo":
        return Devices("gloo", "asked for", given)
    return Devices("nccl", f"{'a GPU' if each == 1 else f'{each} GPUs'} for each rank", given)
