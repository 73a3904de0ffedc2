"""The private names of torch that autoddp stands on; each has a test of its own.

They were run in torch 2.6 to 2.14; what differs between versions is a function here, too.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from operator import attrgetter
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
no_torch_function = torch._C.DisableTorchFunction  # inside, modes are not asked either
no_dispatch, disable_dynamo = torch.utils._mode_utils.no_dispatch, _disable_dynamo
outside_transforms = temporarily_clear_interpreter_stack
sparse_of_parts = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors
is_mutable: Callable[[Any], bool] = attrgetter("_schema.is_mutable")  # writes into arguments
GRADIENTS = ("grad", "_grad")  # the names by which a tensor shows its gradient
_MADE_OF_OTHERS = torch._C.DispatchKey.CompositeImplicitAutograd
_PROXY = torch._C._TorchDispatchModeKey.PROXY
dispatch_depth: Callable[[], int] = torch._C._len_torch_dispatch_stack  # modes that are on
traced: Callable[[], object] = torch._C._get_tracing_state  # of torch.jit.trace; None if none is
transform = torch._C._functorch.peek_interpreter_stack  # of torch.func, that runs; or None


current_node: Callable[[], Any] = torch._C._current_autograd_node  # that the engine runs, or None


def in_backward() -> bool:
    """Tell whether autograd's engine runs this thread."""
    return torch._C._current_graph_task_id() != -1


def in_function() -> bool:
    """Tell whether autograd's engine runs the backward of an `autograd.Function`."""
    return isinstance(current_node(), torch.autograd.function.BackwardCFunction)


def compiler_traces() -> bool:
    """Tell whether a compiler traces a backward by proxies."""
    return torch._C._get_dispatch_mode(_PROXY) is not None


def after_backward(call: Callable[[], None]) -> None:
    """Have autograd's engine run `call` at the end of the backward that runs."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def bound(device: torch.device | None) -> torch.device | None:
    """Return the device to which a process group may be bound; torch 2.6 binds to CUDA's alone."""
    return device if device is None or VERSION > (2, 6) or device.type == "cuda" else None


def accelerator() -> torch.device | None:
    """Return the kind of accelerator that this torch was built for, or that was plugged into it.

    Torch 2.6 looks for a device, after which a fork cannot use it, and raises where there is none.
    """
    if VERSION >= (2, 7):
        return torch.accelerator.current_accelerator()
    plugged = torch._C._get_privateuse1_backend_name()
    if plugged != "privateuseone":
        return torch.device(plugged)
    built = {"cuda": torch.version.cuda or torch.version.hip, "xpu": torch.xpu._is_compiled()}
    built["mps"] = torch.backends.mps.is_built()
    return next((torch.device(kind) for kind, there in built.items() if there), None)


def store_behind(door: socket.socket) -> TCPStore:
    """Serve a store at a socket that listens; torch up to 2.7 can do so without libuv alone."""
    host, port = door.getsockname()
    return TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=door.detach(),
        use_libuv=VERSION >= (2, 8),
    )


class _Prefixed(PrefixStore):
    """A store that can be asked for another connection, as torch's from 2.8 on.

    Also in a fork, which may not use its parent's connection: what has to be asked is asked here.
    """

    def __init__(self, prefix: str, store: Store) -> None:
        super().__init__(prefix, store)
        self._made_of = prefix, store
        torchs = isinstance(store, PrefixStore) and not isinstance(store, _Prefixed)
        self._below = _prefix_of(store) if torchs else None

    def clone(self) -> Store:
        prefix, store = self._made_of
        return _Prefixed(prefix, another_connection(store, self._below))


# a store within another, by the names that begin with a prefix
prefixed = PrefixStore if hasattr(PrefixStore, "clone") else _Prefixed


def _prefix_of(store: Store) -> str:
    """Return the prefix of a store that torch up to 2.7 made, which is in an error's words alone.

    This uses the store's connection.
    """
    try:
        with _unwritten(2):
            store.wait(["?"], timedelta(milliseconds=1))
    except dist.DistError as error:
        return str(error).rpartition("keys: ")[2].partition("/?")[0].removeprefix("/")
    return ""


def another_connection(store: Any, prefix: str | None = None) -> Any:
    """Return the same store by a connection of its own, for a thread or a fork.

    Torch up to 2.7 has no `clone`; there a torch-made store is asked for its prefix, if not given.
    """
    if hasattr(store, "clone"):
        return store.clone()
    known: Any = store  # torch's stubs lack some of its names
    if isinstance(store, TCPStore):
        return TCPStore(store.host, store.port, is_master=False, timeout=known.timeout)
    base = known._underlying_non_prefix_store if isinstance(store, PrefixStore) else None
    if not isinstance(base, TCPStore):
        return store  # a file's, which has no connection
    return _Prefixed(_prefix_of(store) if prefix is None else prefix, another_connection(base))


@contextmanager
def agent_hands_signals_to(handler: Callable[..., None]) -> Iterator[None]:
    """Have torch's elastic agent set this handler of signals, where it sets its own.

    Torch up to 2.9 does so whenever it starts ranks; TORCHELASTIC_SIGNALS_TO_HANDLE is later.
    """
    from torch.distributed.elastic.multiprocessing import api

    before = api._terminate_process_handler
    api._terminate_process_handler = handler
    try:
        yield
    finally:
        api._terminate_process_handler = before


def quiet_gloo() -> AbstractContextManager[None]:
    """Keep gloo from writing to stdout that ranks are connected, as in torch 2.8 and 2.9."""
    return _unwritten(1) if (2, 8) <= VERSION < (2, 11) else nullcontext()


@contextmanager
def _unwritten(number: int) -> Iterator[None]:
    """Lose what is written to a descriptor inside."""
    try:
        kept = os.dup(number)
    except OSError:  # it is closed
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, number)
        yield
    finally:
        os.dup2(kept, number)
        os.close(nowhere)
        os.close(kept)


def replica_of(module: Module, group: ProcessGroup) -> DistributedDataParallel:
    """Make a replica of a module whose parameters are equal on all ranks.

    Torch 2.6 has no `init_sync`, and copies rank 0's parameters to all ranks. These are the same
    values, so that a graph which has saved a parameter may still be walked.
    """
    if VERSION >= (2, 7):
        return DistributedDataParallel(module, process_group=group, init_sync=False)
    versions = [(x, x._version) for x in module.parameters()]
    replica = DistributedDataParallel(module, process_group=group)
    put_back: Any = torch._C._autograd._unsafe_set_version_counter
    for x, version in versions:
        put_back(x, version)
    return replica


def arm(replica: DistributedDataParallel) -> None:
    """Do what a forward does for the backward that follows.

    This is for one that looks for no unused parameters, of no static graph, without buffers.
    """
    replica.reducer.prepare_for_forward()
    replica.reducer._rebuild_buckets()
    replica.reducer.prepare_for_backward([])


def traced_whole(function: Callable[..., Any], backend: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` as Dynamo traces it: one graph, which `backend` is given, or an error."""
    import torch._dynamo

    return torch._dynamo.optimize(backend, nopython=True, dynamic=False)(function)


def inductor_settings(mode: str | None) -> dict[str, Any]:
    """Return inductor's settings for a mode of `torch.compile`."""
    if mode in (None, "default"):
        return {}
    from torch._inductor import list_mode_options

    return list_mode_options(mode)


def compiled_by_inductor(
    module: Any,
    example: list[Any],
    settings: dict[str, Any],
    around: Callable[[], AbstractContextManager[None]],
) -> Any:
    """Have inductor compile a module for such inputs.

    The backward is compiled when it first runs; whatever compiles, does so inside `around()`.
    """
    from torch._inductor import compile_fx

    def inner(*args: Any, **kwargs: Any) -> Any:
        with around():
            return compile_fx.compile_fx_inner(*args, **kwargs)

    return compile_fx.compile_fx(module, example, inner_compile=inner, config_patches=settings)


def compiles() -> bool:
    """Tell whether something was given to torch.compile in this process."""
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    return compiler is not None and any(callable(x) for x in compiler.cached_backends.values())


def has_kernel(operator: str, device: str) -> bool:
    """Tell whether the operator `aten::operator` has a kernel for this type of device."""
    key = torch._C._dispatch_key_for_device(device)
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{operator}", key)


def parts_of(mode: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator under a mode as those that torch makes it of; NotImplemented if it is one.

    A mode is asked with autocast off. What an operator is made of is cast as its caller has set,
    unless autocast has cast the operator's own arguments.
    """
    known: Any = torch._C
    name, has_kernel_for = operator.name(), known._dispatch_has_kernel_for_dispatch_key
    if not has_kernel_for(name, _MADE_OF_OTHERS):
        return NotImplemented
    types = {x.device.type for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
    keys = [f"Autocast{known._dispatch_key_for_device(type)}" for type in types]
    cast = any(hasattr(known.DispatchKey, key) and has_kernel_for(name, key) for key in keys)
    with (
        known._RestorePythonTLSSnapshot(),
        mode,
        known._DisableAutocast() if cast else nullcontext(),
    ):
        return operator._op_dk(_MADE_OF_OTHERS, *args, **kwargs)


def has_own_functions(kind: type[torch.Tensor]) -> bool:
    """Tell whether tensors of this class answer torch functions themselves; parameters do not."""
    return (
        kind is not torch.Tensor
        and kind.__torch_function__ is not torch._C._disabled_torch_function_impl
    )
