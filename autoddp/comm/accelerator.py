"""The accelerator that torch knows, whichever it is: its devices, generators, names, memory.

Where there is none, the functions say so: empty, None or False.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autoddp import torch_internals

# where numbers are that no accelerator shall take for its own, whatever the script made the default
CPU = torch.device("cpu")


def kind() -> str:
    """Return torch's name for the accelerator's kind; empty if none, or not touched yet."""
    found = torch_internals.accelerator()
    return found.type if found is not None and used(found.type) else ""


def used(kind: str) -> bool:
    """Return whether this process has touched a device of `kind`; if unknown, if one is there."""
    initialized = getattr(getattr(torch, kind, None), "is_initialized", None)
    return torch.accelerator.device_count() > 0 if initialized is None else bool(initialized())


def unforkable() -> bool:
    """Return, in a forked child, whether it cannot touch the device because its parent did."""
    found = torch_internals.accelerator()
    module = None if found is None else getattr(torch, found.type, None)
    return module is not None and bool(getattr(module, "_is_in_bad_fork", bool)())


def devices() -> list[torch.device]:
    """Return all devices that this process sees, none before it has touched any."""
    name = kind()
    return [torch.device(name, n) for n in range(torch.accelerator.device_count())] if name else []


def states() -> list[Tensor]:
    """Return the generator states of all devices, in their order, without the CPU's."""
    return [state(device) for device in devices()]


def set_states(found: list[Tensor]) -> None:
    """Set what `states` returned; states of devices that are not there are dropped."""
    for device, known in zip(devices(), found, strict=False):
        set_state(device, known)


def at(device: torch.device) -> torch.device:
    """Return the device with its number: a device named by its kind alone is the current one."""
    if device.index is not None or device.type in ("cpu", "mps"):
        return device
    return torch.device(device.type, torch.accelerator.current_device_index())


def state(device: torch.device) -> Tensor:
    """Return the state of a device's default generator."""
    if device.type == "cpu":
        return torch.get_rng_state()
    named = () if device.type == "mps" else (at(device),)
    found: Tensor = torch.get_device_module(device.type).get_rng_state(*named)
    return found


def set_state(device: torch.device, known: Tensor) -> None:
    """Set the state of a device's default generator."""
    if device.type == "cpu":
        torch.set_rng_state(known)
        return
    named = () if device.type == "mps" else (at(device),)
    torch.get_device_module(device.type).set_rng_state(known, *named)


def capturing() -> bool:
    """Return whether a CUDA graph records what runs now, to run it again without Python."""
    asked = _asked("is_current_stream_capturing")
    return asked is not None and bool(asked())


def identity(given: str) -> str:
    """Return the current device's name on its machine: its driver's, else one of `given`."""
    if not kind():
        return ""
    number = torch.accelerator.current_device_index()
    asked = _asked("get_device_properties")
    uuid = getattr(asked(number), "uuid", None) if asked is not None else None
    return str(uuid) if uuid else f"{kind()} {given or number}"


def name() -> str:
    """Return its maker's name for the current device; empty where torch does not say."""
    asked = _asked("get_device_name")
    return str(asked()) if asked is not None else ""


def most_memory() -> int | None:
    """Return the most bytes of the current device in use at once; None where nobody counts."""
    asked = _asked("max_memory_allocated")
    return int(asked()) if asked is not None else None


def _asked(function: str) -> Any:
    """Return a function that torch has for the accelerator's kind; None where there is none."""
    found = kind()
    return getattr(torch.get_device_module(found), function, None) if found else None


def synchronize() -> None:
    """Wait until all devices of this process have done what they were given."""
    for device in devices():
        torch.accelerator.synchronize(device)
