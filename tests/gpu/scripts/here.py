"""The device of this machine, its accelerator or else the CPU, and what a part of a script costs on it."""

import warnings

import torch

there = torch.accelerator.is_available()
device = torch.accelerator.current_accelerator() if there else torch.device("cpu")
native = getattr(torch.get_device_module(device.type), "native", None)  # of the simulated device
_before, _heard = {}, []


def synchronize():
    if there:
        torch.accelerator.synchronize()


def begin():
    """Measure from here on."""
    global _heard
    synchronize()
    if native is not None:
        native.reset_peak()
        _before.update(native.counts())
    elif there:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.set_sync_debug_mode("warn")
        _heard = warnings.catch_warnings(record=True).__enter__()
        warnings.simplefilter("always")


def cost(steps):
    """The peak of memory since, and how often the host has waited in a step."""
    if native is not None:
        now = native.counts()
        waits = sum(now[name] - _before[name] for name in ("reads", "to_host", "waits"))
        return {"peak_mb": native.memory()["peak"] / 2**20, "waits_per_step": waits / steps}
    if not there:
        return {}
    torch.cuda.set_sync_debug_mode("default")
    waits = sum("synchroniz" in str(warned.message) for warned in _heard)
    return {"peak_mb": torch.cuda.max_memory_allocated() / 2**20, "waits_per_step": waits / steps}
