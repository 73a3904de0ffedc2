"""An accelerator that is not there, as a package of its own that torch finds by its entry point.

`SIMULATED_DEVICES` of it are there (4), `SIMULATED_VISIBLE_DEVICES` narrows them.
`SIMULATED_ALGORITHMS` sums in another order where there are few rows, and `SIMULATED_SPINS` keeps a
processor busy while the host waits for the device, as CUDA does; a collective takes `SIMULATED_LAG`
milliseconds.
"""

from __future__ import annotations

import os
import types
from typing import Any

import torch

NAME = "simulated"
BACKEND = "simccl"
MOST = 2  # devices of a rank that it talks from
ASKS = "SIMULATED_ASKS"  # is_available() begins the device, as CUDA's does unless told to ask NVML


def load() -> None:
    """What torch calls at its end."""
    import torch.distributed as dist

    from simulated import build

    native = build.load()
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, module(native))
    torch.utils.generate_methods_for_privateuse1_backend()

    def create(store: Any, rank: int, size: int, timeout: Any) -> Any:
        """Its devices each have a communicator; what travels, travels by gloo."""
        native.begin()
        ways = [
            dist.ProcessGroupGloo(dist.PrefixStore(f"device {k}", store), rank, size, timeout)
            for k in range(MOST)  # of each rank, whatever it sees besides
        ]
        return native.create(ways, rank, size)

    dist.Backend.register_backend(BACKEND, create, devices=[NAME])


class Properties:
    """Of one device."""

    def __init__(self, native: Any, index: int) -> None:
        self.name, self.uuid, self.total_memory = "Simulated", native.identity(index), 1 << 34


class _Current:
    """Inside, another device is the current one."""

    def __init__(self, device: Any) -> None:
        self.index = device if isinstance(device, int) else torch.device(device).index or 0

    def __enter__(self) -> None:
        self.before = torch.accelerator.current_device_index()
        torch.accelerator.set_device_index(self.index)

    def __exit__(self, *raised: object) -> None:
        torch.accelerator.set_device_index(self.before)


def _later(native: Any, name: str) -> Any:
    if name != "default_generators":
        raise AttributeError(name)
    return tuple(map(native.default_generator, range(native.device_count())))


def _in_a_child(native: Any) -> int:
    """Counted without beginning the device here, as NVML does it."""
    pid = os.fork()
    if pid == 0:
        os._exit(native.device_count())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def module(native: Any) -> types.ModuleType:
    """`torch.simulated`."""
    made = types.ModuleType(f"torch.{NAME}")
    made.native = native  # for tests: counts(), collectives(), recorded_streams()

    def index(device: Any = None) -> int:
        if isinstance(device, int):
            return device
        at = None if device is None else torch.device(device).index
        return torch.accelerator.current_device_index() if at is None else at

    def of(device: Any = None) -> torch.Generator:
        return _later(native, "default_generators")[index(device)]

    made.__getattr__ = lambda name: _later(native, name)
    made.is_available = lambda: (
        (native.device_count() if ASKS in os.environ else made.device_count()) > 0
    )
    made.is_initialized = native.is_used
    made.init = made._lazy_init = native.begin
    made.device_count = lambda: native.device_count() if native.is_asked() else _in_a_child(native)
    made.current_device = torch.accelerator.current_device_index
    made.set_device = lambda device: torch.accelerator.set_device_index(index(device))
    made.device = _Current
    made.synchronize = torch.accelerator.synchronize
    made.current_stream = torch.accelerator.current_stream
    made.Stream, made.Event = torch.Stream, torch.Event
    made._is_in_bad_fork = native.is_in_bad_fork
    made.get_device_properties = lambda device=None: Properties(native, index(device))
    made.get_device_name = lambda device=None: "Simulated"
    made.manual_seed = lambda seed: of().manual_seed(int(seed)) and None
    made.manual_seed_all = lambda seed: native.seed_all(int(seed) % 2**64)
    made.get_rng_state = lambda device=NAME: of(device).get_state()
    made.set_rng_state = lambda state, device=NAME: of(device).set_state(state)
    made.get_rng_state_all = lambda: [g.get_state() for g in _later(native, "default_generators")]
    made.set_rng_state_all = lambda states: [
        g.set_state(s) for g, s in zip(_later(native, "default_generators"), states, strict=True)
    ]
    made.initial_seed = lambda: of().initial_seed()
    made.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    made.empty_cache = lambda: None
    made.recording = False  # a test sets it where a CUDA graph would be recorded
    made.is_current_stream_capturing = lambda: made.recording
    return made
