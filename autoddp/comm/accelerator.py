"""What torch says of the accelerator that it knows, whichever that is; nothing of any where there is none."""

from __future__ import annotations

import torch
from torch import Tensor

# where numbers are that no accelerator shall take for its own, whatever the script made the default
CPU = torch.device("cpu")


def kind() -> str:
    """Torch's word for it; empty where this process has none, or has not touched it."""
    found = torch.accelerator.current_accelerator()
    return found.type if found is not None and used(found.type) else ""


def used(kind: str) -> bool:
    """Whether this process has touched a device of this kind."""
    initialized = getattr(getattr(torch, kind, None), "is_initialized", None)
    return torch.accelerator.device_count() > 0 if initialized is None else bool(initialized())


def unforkable() -> bool:
    """Whether a child of this process could not touch the device: only in a child it shows."""
    found = torch.accelerator.current_accelerator()
    module = None if found is None else getattr(torch, found.type, None)
    return module is not None and bool(getattr(module, "_is_in_bad_fork", bool)())


def devices() -> list[torch.device]:
    """All that this process sees, if it has touched any."""
    name = kind()
    return [torch.device(name, n) for n in range(torch.accelerator.device_count())] if name else []


def states() -> list[Tensor]:
    """The states of the devices' generators, in their order; the CPU's is none of them."""
    return [state(device) for device in devices()]


def set_states(found: list[Tensor]) -> None:
    """The inverse; of devices that are not there nothing is set."""
    for device, known in zip(devices(), found, strict=False):
        set_state(device, known)


def at(device: torch.device) -> torch.device:
    """With its number: one that is named by its kind alone is the current one."""
    if device.index is not None or device.type in ("cpu", "mps"):
        return device
    return torch.device(device.type, torch.accelerator.current_device_index())


def state(device: torch.device) -> Tensor:
    """Of the generator that draws on a device where none is named."""
    if device.type == "cpu":
        return torch.get_rng_state()
    named = () if device.type == "mps" else (at(device),)
    found: Tensor = torch.get_device_module(device.type).get_rng_state(*named)
    return found


def set_state(device: torch.device, known: Tensor) -> None:
    """The inverse."""
    if device.type == "cpu":
        torch.set_rng_state(known)
        return
    named = () if device.type == "mps" else (at(device),)
    torch.get_device_module(device.type).set_rng_state(known, *named)


def capturing() -> bool:
    """Whether what runs now is recorded, to be run again without Python: a CUDA graph."""
    name = kind()
    asked = getattr(torch.get_device_module(name), "is_current_stream_capturing", None) if name else None
    return asked is not None and bool(asked())


def identity(given: str) -> str:
    """The current device's name on its machine: its driver's, else that by which it was given."""
    name = kind()
    if not name:
        return ""
    number = torch.accelerator.current_device_index()
    module = torch.get_device_module(name)
    properties = getattr(module, "get_device_properties", None)
    uuid = getattr(properties(number), "uuid", None) if properties is not None else None
    return str(uuid) if uuid else f"{name} {given or number}"


def name() -> str:
    """What its maker calls the current device; empty where torch does not say."""
    asked = getattr(torch.get_device_module(kind()), "get_device_name", None) if kind() else None
    return str(asked()) if asked is not None else ""


def most_memory() -> int | None:
    """Bytes of the current device that were in use at once; None where nobody counts."""
    try:
        return torch.accelerator.max_memory_allocated() if kind() else None
    except RuntimeError:
        return None


def synchronize() -> None:
    """Wait until all devices of this process have done what they were given."""
    for device in devices():
        torch.accelerator.synchronize(device)
