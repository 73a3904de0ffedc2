"""The private names of torch that autoddp uses, and differences between versions of torch.

Each has a test of its own; they were tested with torch 2.6 to 2.15.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from operator import attrgetter, methodcaller
from typing import Any

import torch
import torch.distributed as dist
import torch.utils._mode_utils
import torch.utils._python_dispatch
from torch._compile import _disable_dynamo
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.distributed import PrefixStore, ProcessGroup, Store, TCPStore
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])  # (2, 14)
FunctionalTensor = torch._subclasses.functional_tensor.FunctionalTensor  # in a compiler's trace
DispatchMode = torch.utils._python_dispatch.TorchDispatchMode
OpOverload, OpOverloadPacket = torch._ops.OpOverload, torch._ops.OpOverloadPacket
TensorBase: type = torch._C.TensorBase
BatchNorm = torch.nn.modules.batchnorm._BatchNorm  # of all dimensions, synchronized or not
plain_tensors = torch._C.DisableTorchFunctionSubclass  # inside, subclasses are plain tensors
no_torch_function = torch._C.DisableTorchFunction  # also disables modes
no_dispatch, disabled_by_dynamo = torch.utils._mode_utils.no_dispatch, _disable_dynamo
outside_modes = torch.utils._python_dispatch._disable_current_modes
outside_transforms = temporarily_clear_interpreter_stack
sparse_of_parts = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors
is_mutable: Callable[[Any], bool] = attrgetter("_schema.is_mutable")  # writes to arguments
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_TRACES = torch._C._TorchDispatchModeKey.PROXY, torch._C._TorchDispatchModeKey.FUNCTIONAL
dispatch_depth: Callable[[], int] = torch._C._len_torch_dispatch_stack  # number of active modes
function_depth: Callable[[], int] = torch._C._len_torch_function_stack  # likewise
pop_function_mode: Callable[[], Any] = torch._C._pop_torch_function_stack
push_function_mode: Callable[[Any], None] = torch._C._push_on_torch_function_stack
traced: Callable[[], object] = torch._C._get_tracing_state  # of torch.jit.trace; or None
transform = torch._C._functorch.peek_interpreter_stack  # the active one of torch.func; or None
# give two tensors each other's implementation; objects and classes stay
swap_implementation: Callable[[torch.Tensor, torch.Tensor], None] = torch._C._swap_tensor_impl
tensor_uses: Callable[[torch.Tensor], int] = methodcaller("_use_count")  # references of C++
foreach_norm = torch._foreach_norm
unscale_gradients = torch._amp_foreach_non_finite_check_and_unscale_
current_node: Callable[[], Any] = torch._C._current_autograd_node  # that the engine runs; or None


class SavedTensors:
    """Hooks of saved tensors, for which torch has a context manager that features patch."""

    # whether torch tells which hooks apply already; torch 2.6 does not
    nest = hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks")

    def __init__(self, pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> None:
        self._hooks = pack, unpack

    @staticmethod
    def outer() -> tuple[Callable[[Any], Any], Callable[[Any], Any]] | None:
        """Return the hooks that apply now; None for none."""
        found: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
        return found

    def push(self) -> None:
        """Let these apply from now on."""
        torch._C._autograd._push_saved_tensors_default_hooks(*self._hooks)

    @staticmethod
    def pop() -> None:
        """Let those apply that applied before."""
        torch._C._autograd._pop_saved_tensors_default_hooks()


def storage_uses(x: torch.Tensor) -> int:
    """Return how many tensors and objects of torch share a tensor's memory, with itself."""
    storage = x.untyped_storage()
    known: Any = torch._C
    return int(known._storage_Use_Count(storage._cdata)) - 1  # without `storage`


def device_of(*args: Any, **kwargs: Any) -> torch.device | None:
    """Return the device that arguments of `Module.to` name; None if they name none."""
    found: torch.device | None = torch._C._nn._parse_to(*args, **kwargs)[0]
    return found


def in_backward() -> bool:
    """Return whether autograd's engine runs on this thread."""
    return torch._C._current_graph_task_id() != -1


def in_function() -> bool:
    """Return whether autograd's engine runs the backward of an `autograd.Function`."""
    return isinstance(current_node(), torch.autograd.function.BackwardCFunction)


def compiler_traces() -> bool:
    """Return whether a compiler traces what runs, with its own kinds of tensors."""
    return any(torch._C._get_dispatch_mode(key) is not None for key in _TRACES)


def after_backward(call: Callable[[], None]) -> None:
    """Queue `call` to run at the end of the current backward pass."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def bound(device: torch.device | None) -> torch.device | None:
    """Return the device to bind a process group to; torch 2.6 binds to CUDA devices only."""
    return device if device is None or VERSION > (2, 6) or device.type == "cuda" else None


def accelerator() -> torch.device | None:
    """Return the kind of accelerator that this torch was built for, or that a plugin added.

    The function of torch 2.6 would initialize a device, which a fork then could not use.
    """
    if VERSION >= (2, 7):
        return torch.accelerator.current_accelerator()
    plugged = torch._C._get_privateuse1_backend_name()
    if plugged != "privateuseone":
        return torch.device(plugged)
    built = {"cuda": torch.version.cuda or torch.version.hip, "xpu": torch.xpu._is_compiled()}
    built["mps"] = torch.backends.mps.is_built()
    return next((torch.device(kind) for kind, is_built in built.items() if is_built), None)


def store_behind(listener: socket.socket) -> TCPStore:
    """Serve a store on a listening socket; torch up to 2.7 can do so only without libuv."""
    host, port = listener.getsockname()
    return TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
        use_libuv=VERSION >= (2, 8),
    )


class _Prefixed(PrefixStore):
    """A store with `clone`, like torch's from 2.8 on.

    It also works in a fork, which must not use its parent's connection: the prefix is read here.
    """

    def __init__(self, prefix: str, store: Store) -> None:
        super().__init__(prefix, store)
        self._parts = prefix, store
        by_torch = isinstance(store, PrefixStore) and not isinstance(store, _Prefixed)
        self._inner_prefix = _prefix_of(store) if by_torch else None

    def clone(self) -> Store:
        prefix, store = self._parts
        return _Prefixed(prefix, another_connection(store, self._inner_prefix))


# a store of the keys with a prefix in another store
prefixed = PrefixStore if hasattr(PrefixStore, "clone") else _Prefixed


def _prefix_of(store: Store) -> str:
    """Return the prefix of a store of torch up to 2.7, from the text of an error.

    This uses the store's connection.
    """
    try:
        with _discarded(2):
            store.wait(["?"], timedelta(milliseconds=1))
    except dist.DistError as error:
        return str(error).rpartition("keys: ")[2].partition("/?")[0].removeprefix("/")
    return ""


def another_connection(store: Any, prefix: str | None = None) -> Any:
    """Return the same store with another connection, for a thread or a fork.

    Torch up to 2.7 has no `clone`; there `prefix` is read from a store of torch, if not given.
    """
    if hasattr(store, "clone"):
        return store.clone()
    known: Any = store  # torch's stubs lack some of its names
    if isinstance(store, TCPStore):
        return TCPStore(store.host, store.port, is_master=False, timeout=known.timeout)
    base = known._underlying_non_prefix_store if isinstance(store, PrefixStore) else None
    if not isinstance(base, TCPStore):
        return store  # a file store, without a connection
    return _Prefixed(_prefix_of(store) if prefix is None else prefix, another_connection(base))


@contextmanager
def agent_hands_signals_to(handler: Callable[..., None]) -> Iterator[None]:
    """Replace the signal handler that torch's elastic agent installs by this one.

    Torch up to 2.9 installs it when it starts ranks; others read TORCHELASTIC_SIGNALS_TO_HANDLE.
    """
    from torch.distributed.elastic.multiprocessing import api

    original = api._terminate_process_handler
    api._terminate_process_handler = handler
    try:
        yield
    finally:
        api._terminate_process_handler = original


def quiet_gloo() -> AbstractContextManager[None]:
    """Discard the line that gloo of torch 2.8 to 2.10 prints when ranks are connected."""
    return _discarded(1) if (2, 8) <= VERSION < (2, 11) else nullcontext()


@contextmanager
def _discarded(number: int) -> Iterator[None]:
    """Discard what is written to a descriptor inside the context."""
    try:
        copy = os.dup(number)
    except OSError:  # it is closed
        yield
        return
    devnull = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, number)
        yield
    finally:
        os.dup2(copy, number)
        os.close(devnull)
        os.close(copy)


def replica_of(module: Module, group: ProcessGroup) -> DistributedDataParallel:
    """Make a replica of a module whose parameters are equal on all ranks.

    Torch 2.6 has no `init_sync`, and copies rank 0's parameters to all ranks. As the values are
    equal, versions are reset, and graphs that have saved a parameter stay valid.
    """
    if VERSION >= (2, 7):
        return DistributedDataParallel(module, process_group=group, init_sync=False)
    versions = [(x, x._version) for x in module.parameters()]
    replica = DistributedDataParallel(module, process_group=group)
    set_version: Any = torch._C._autograd._unsafe_set_version_counter
    for x, version in versions:
        set_version(x, version)
    return replica


def arm(replica: DistributedDataParallel) -> None:
    """Prepare the reducer for a backward pass, as DDP's forward does.

    The replica does not look for unused parameters, and has no static graph or buffers.
    """
    replica.reducer.prepare_for_forward()
    replica.reducer._rebuild_buckets()
    replica.reducer.prepare_for_backward([])


def compiles() -> bool:
    """Return whether this process has used torch.compile."""
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    return compiler is not None and any(callable(x) for x in compiler.cached_backends.values())


def has_kernel(operator: str, device: str) -> bool:
    """Return whether the operator `aten::operator` has a kernel for this type of device."""
    key = torch._C._dispatch_key_for_device(device)
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{operator}", key)


def parts_of(mode: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Decompose a composite operator under a mode; return NotImplemented for any other.

    Modes run with autocast disabled. The parts run with the caller's autocast, unless autocast has
    cast the arguments of the composite operator already.
    """
    known: Any = torch._C
    name, has_kernel_for = operator.name(), known._dispatch_has_kernel_for_dispatch_key
    if not has_kernel_for(name, _COMPOSITE):
        return NotImplemented
    types = {x.device.type for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
    keys = [f"Autocast{known._dispatch_key_for_device(type)}" for type in types]
    cast = any(hasattr(known.DispatchKey, key) and has_kernel_for(name, key) for key in keys)
    with (
        known._RestorePythonTLSSnapshot(),
        mode,
        known._DisableAutocast() if cast else nullcontext(),
    ):
        return operator._op_dk(_COMPOSITE, *args, **kwargs)


def has_own_functions(kind: type[torch.Tensor]) -> bool:
    """Return whether a class of tensors overrides `__torch_function__`."""
    none = torch._C._disabled_torch_function_impl
    return kind is not torch.Tensor and kind.__torch_function__ is not none
