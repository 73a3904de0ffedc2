"""The accelerator that torch knows, of whatever kind: its devices, generators and functions.

`torch.accelerator` has no generators, nor names and memory in torch 2.6: those are asked of the
kind's own module.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autoddp import torch_internals

CPU = torch.device("cpu")  # given where the script's default device must not apply


def kind() -> str:
    """Return torch's name for the accelerator's kind; empty if none, or not touched yet."""
    found = torch_internals.accelerator()
    if found is None:
        return ""
    initialized = getattr(getattr(torch, found.type, None), "is_initialized", None)
    used = torch.accelerator.device_count() > 0 if initialized is None else initialized()
    return found.type if used else ""


def unforkable() -> bool:
    """Return, in a forked child, whether it cannot touch the device because its parent did."""
    found = torch_internals.accelerator()
    module = None if found is None else getattr(torch, found.type, None)
    return module is not None and bool(getattr(module, "_is_in_bad_fork", bool)())


def devices() -> list[torch.device]:
    """Return all devices that this process sees, none before it has touched any."""
    name = kind()
    return [torch.device(name, n) for n in range(torch.accelerator.device_count())] if name else []


def at(device: torch.device) -> torch.device:
    """Return the device with its number: a device named by its kind alone is the current one."""
    if device.index is not None or device.type == "cpu":
        return device
    return torch.device(device.type, torch.accelerator.current_device_index())


def states() -> list[Tensor]:
    """Return the generator states of all devices, in their order, without the CPU's."""
    return [state(device) for device in devices()]


def set_states(found: list[Tensor]) -> None:
    """Set what `states` returned; states of devices that are not there are dropped."""
    for device, known in zip(devices(), found, strict=False):
        set_state(device, known)


def state(device: torch.device) -> Tensor:
    """Return the state of a device's default generator."""
    if device.type == "cpu":
        return torch.get_rng_state()
    found: Tensor = torch.get_device_module(device.type).get_rng_state(at(device))
    return found


def set_state(device: torch.device, known: Tensor) -> None:
    """Set the state of a device's default generator."""
    if device.type == "cpu":
        torch.set_rng_state(known)
    else:
        torch.get_device_module(device.type).set_rng_state(known, at(device))


def ask(function: str, *given: Any) -> Any:
    """Call a function of the kind's module, by its name; None if there is none, or no device."""
    name = kind()
    found = getattr(torch.get_device_module(name), function, None) if name else None
    return found(*given) if found is not None else None


def capturing() -> bool:
    """Return whether a CUDA graph records what runs now, to run it again without Python."""
    return bool(ask("is_current_stream_capturing"))


def identity(given: str) -> str:
    """Return the current device's name on its machine: its driver's, else one of `given`."""
    if not kind():
        return ""
    number = torch.accelerator.current_device_index()
    uuid = getattr(ask("get_device_properties", number), "uuid", None)
    return str(uuid) if uuid else f"{kind()} {given or number}"


def synchronize() -> None:
    """Wait until all devices of this process have completed their work."""
    for device in devices():
        torch.accelerator.synchronize(device)
