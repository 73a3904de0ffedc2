"""The private names of torch that autoddp stands on; each has a test of its own.

The tests are in tests/test_torch_internals.py. All names were read and run in torch 2.11 to 2.14.
A name that torch moves is found by its test, and mended here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._mode_utils
import torch.utils._python_dispatch
from torch._C._distributed_c10d import _create_work_from_future
from torch._compile import _disable_dynamo
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._library.effects import EffectType
from torch.distributed.distributed_c10d import _get_default_store
from torch.nn.parallel import DistributedDataParallel

DispatchMode = torch.utils._python_dispatch.TorchDispatchMode
OpOverload, OpOverloadPacket = torch._ops.OpOverload, torch._ops.OpOverloadPacket
HigherOrderOperator = torch._ops.HigherOrderOperator
TensorBase: type = torch._C.TensorBase
BatchNorm = torch.nn.modules.batchnorm._BatchNorm  # of all dimensions, synchronized or not
ORDERED = EffectType.ORDERED  # of an operator that a compiler must leave where it is
plain_tensors = torch._C.DisableTorchFunctionSubclass  # inside, subclasses are plain tensors
no_torch_function = torch._C.DisableTorchFunction  # inside, modes are not asked either
no_dispatch = torch.utils._mode_utils.no_dispatch
disable_dynamo = _disable_dynamo
default_store = _get_default_store
work_of = _create_work_from_future
outside_transforms = temporarily_clear_interpreter_stack
sparse_of_parts = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors
GRADIENTS = ("grad", "_grad")  # the names by which a tensor shows its gradient
_PROXY = torch._C._TorchDispatchModeKey.PROXY
# the transform of torch.func that runs: vmap, grad ...; or None
transform = torch._C._functorch.peek_interpreter_stack


def in_backward() -> bool:
    """Tell whether autograd's engine runs this thread."""
    return torch._C._current_graph_task_id() != -1


def traced() -> bool:
    """Tell whether `torch.jit.trace` records what runs."""
    return torch._C._get_tracing_state() is not None


def compiler_traces() -> bool:
    """Tell whether a compiler traces a backward by proxies."""
    return torch._C._get_dispatch_mode(_PROXY) is not None


def after_backward(call: Callable[[], None]) -> None:
    """Have autograd's engine run `call` at the end of the backward that runs."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def arm(replica: DistributedDataParallel) -> None:
    """Do for the backward that follows what a forward does, without its many questions.

    A replica's first forward asks them. This is for one that looks for no unused parameters, whose
    graph is not static, and whose module has no buffers.
    """
    replica.reducer.prepare_for_forward()
    replica.reducer._rebuild_buckets()
    replica.reducer.prepare_for_backward([])


def compiles() -> bool:
    """Tell whether something was given to torch.compile in this process."""
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    return compiler is not None and any(callable(x) for x in compiler.cached_backends.values())


def has_kernel(operator: str, device: str) -> bool:
    """Tell whether the operator `aten::operator` has a kernel for this type of device."""
    key = torch._C._dispatch_key_for_device(device)
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{operator}", key)


def storage_users(storage: torch.UntypedStorage) -> int:
    """Count the tensors, of Python's and of torch's own, that hold a storage."""
    return torch._C._storage_Use_Count(storage._cdata)


def is_mutable(operator: Any) -> bool:
    """Tell whether one overload of an operator says that it writes into what it is given."""
    return operator._schema.is_mutable
