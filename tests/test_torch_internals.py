"""Each private name of torch that we stand on, by itself: which one a new torch has moved."""

from __future__ import annotations

import signal
import socket
import warnings
from typing import ClassVar

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, start_processes
from torch.fx.experimental.proxy_tensor import make_fx

from autoddp import torch_internals
from tests.support.cli import ROOT, run_python
from tests.support.ranks import run_ranks


class Plain(torch.Tensor):
    """A subclass whose operations are seen."""

    seen = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen += 1
        return super().__torch_function__(func, types, args, kwargs or {})


class Seen(torch_internals.DispatchMode):
    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.found.append(func)
        return func(*args, **(kwargs or {}))


def test_a_mode_sees_operators_and_no_dispatch_passes_it_by():
    x = torch.ones(2)
    with Seen() as mode:
        x + x
        with torch_internals.no_dispatch():
            x * x
    (found,) = mode.found
    assert isinstance(found, torch_internals.OpOverload)
    assert isinstance(torch.ops.aten.add, torch_internals.OpOverloadPacket)
    assert not torch_internals.is_mutable(found)
    assert torch_internals.is_mutable(torch.ops.aten.add_.Tensor)


def test_inside_plain_tensors_no_subclass_is_asked():
    x = torch.ones(2).as_subclass(Plain)
    Plain.seen = 0
    with torch_internals.plain_tensors():
        x + x
    assert Plain.seen == 0
    x + x
    assert Plain.seen == 1


def test_without_torch_functions_neither_a_subclass_nor_a_mode_is_asked():
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            raise AssertionError(func)

    x = torch.ones(2).as_subclass(Plain)
    Plain.seen = 0
    with Mode(), torch_internals.no_torch_function():
        assert x.grad is None
    assert Plain.seen == 0


def test_the_modes_that_are_on_are_counted():
    class Mode(torch_internals.DispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found.append(torch_internals.dispatch_depth())
            return func(*args, **(kwargs or {}))

    found: list[int] = []
    assert torch_internals.dispatch_depth() == 0
    with Mode():
        assert torch_internals.dispatch_depth() == 1
        torch.ones(2)
    assert found == [0]


def test_all_kinds_of_batchnorm_are_one():
    kinds = (torch.nn.BatchNorm1d, torch.nn.BatchNorm3d, torch.nn.SyncBatchNorm)
    assert all(issubclass(kind, torch_internals.BatchNorm) for kind in kinds)
    assert not issubclass(torch.nn.InstanceNorm1d, torch_internals.BatchNorm)


def test_a_tensor_is_a_tensor_base():
    assert issubclass(torch.Tensor, torch_internals.TensorBase)


def test_the_backward_of_a_function_is_told_from_that_of_an_operator():
    found = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            found.append(torch_internals.in_function())
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            found.append(torch_internals.in_function())
            return gradient * 2

    x = torch.ones(2, requires_grad=True)
    y = x * 3
    y.register_hook(lambda _: found.append(torch_internals.in_function()))
    (Twice.apply(y)).sum().backward()
    assert found == [False, True, False]


def test_the_engine_is_told_from_the_script_and_calls_at_its_end():
    found = []

    def hook(gradient):
        found.append(torch_internals.in_backward())
        torch_internals.after_backward(lambda: found.append("end"))
        return gradient

    x = torch.ones(2, requires_grad=True)
    x.register_hook(hook)
    assert not torch_internals.in_backward()
    (x * 2).sum().backward()
    assert found == [True, "end"]


def test_transforms_tracing_and_a_compilers_proxies_are_told():
    found = []

    def look(x):
        found.append(
            (
                torch_internals.transform() is not None,
                bool(torch_internals.traced()),
                torch_internals.compiler_traces(),
            )
        )
        return x * 2

    x = torch.ones(2)
    look(x)
    torch.func.vmap(look)(x)
    make_fx(look)(x)
    assert found == [(False, False, False), (True, False, False), (False, False, True)]
    found.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that tracing is old
        torch.jit.trace(look, x, check_trace=False)
    assert found == [(False, True, False)]


def test_outside_transforms_there_is_none():
    found = []

    def look(x):
        with torch_internals.outside_transforms():
            found.append(torch_internals.transform())
        return x * 2

    torch.func.vmap(look)(torch.ones(2))
    assert found == [None]


def test_a_function_that_dynamo_leaves_alone_is_still_one():
    def traced(x):
        return x + torch.compiler.is_compiling()

    x = torch.ones(1)
    compiled = torch.compile(lambda x: traced(x), backend="eager")
    left = torch.compile(lambda x: torch_internals.disable_dynamo(traced)(x), backend="eager")
    assert (compiled(x).item(), left(x).item()) == (2, 1)


def test_kernels_are_found_by_device():
    assert torch_internals.has_kernel("add.Tensor", "cpu")
    assert not torch_internals.has_kernel("batch_norm_stats", "cpu")


def test_an_operator_that_is_made_of_others_is_run_as_these():
    class Seen(torch_internals.DispatchMode):
        names: ClassVar[list[str]] = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(func.overloadpacket.__name__)
            parts = torch_internals.parts_of(self, func, *args, **(kwargs or {}))
            return func(*args, **(kwargs or {})) if parts is NotImplemented else parts

    x = torch.ones(4)
    with torch.inference_mode(), Seen():
        torch.dropout(x, 0.5, True)
    assert Seen.names[0] == "dropout"
    assert "bernoulli_" in Seen.names


def test_the_parts_of_an_operator_are_cast_as_its_caller_has_set():
    class Made(torch_internals.DispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            parts = torch_internals.parts_of(self, func, *args, **(kwargs or {}))
            return func(*args, **(kwargs or {})) if parts is NotImplemented else parts

    x, lstm = torch.rand(3, 4), torch.nn.LSTM(4, 4)
    calls = {
        "mm": lambda: torch.mm(x, x.T),
        "einsum": lambda: torch.einsum("ij,kj->ik", x, x),
        "linear": lambda: torch.nn.functional.linear(x, x),
        "lstm": lambda: lstm(x)[0],
        "gru_cell": lambda: torch.nn.GRUCell(4, 4)(x),
        "losses": lambda: torch.nn.functional.smooth_l1_loss(torch.mm(x, x.T), x @ x.T),
        "cosine": lambda: torch.cosine_similarity(torch.mm(x, x.T), torch.mm(x, x.T)),
        "off": lambda: torch.autocast("cpu", enabled=False)(torch.inner)(x, x),
        "attention": lambda: torch.nn.MultiheadAttention(4, 2)(x, x, x)[0],
    }
    for name, call in calls.items():
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            torch.manual_seed(0)
            alone = call()
            with Made():
                torch.manual_seed(0)
                torch.testing.assert_close(call(), alone, msg=name)


def test_torchscript_takes_a_function_for_an_operator():
    def said(text):
        raise AssertionError(text)

    def telling(x: torch.Tensor):
        said("a text")
        return x

    torch_internals.as_builtin(said, "aten::warn")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert "aten::warn" in str(torch.jit.script(telling).graph)
    BUILTINS.append(said)


BUILTINS = []  # torch knows them by their ids for as long as it runs


def test_a_sparse_tensor_is_made_of_its_parts():
    made = torch_internals.sparse_of_parts(
        1,
        0,
        (3,),
        torch.tensor([[2]]),
        torch.tensor([5.0]),
        dtype=torch.float32,
        layout=torch.sparse_coo,
        device=torch.device("cpu"),
    )
    assert made.to_dense().tolist() == [0, 0, 5]


def armed(group):
    """A replica whose forward is called once, and which is armed without it from then on."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    replica = torch_internals.replica_of(model, group.pg)
    means = []
    for step in range(4):
        x = torch.full((1, 3), 1.0 + group.rank)
        model.zero_grad()
        if step:
            torch_internals.arm(replica)
            model(x).sum().backward()
        else:
            replica(x).sum().backward()
        means.append([p.grad.clone() for p in model.parameters()])
    return [all(map(torch.equal, means[0], later)) for later in means[1:]], means[0][-2][0].tolist()


def test_a_replica_is_armed_without_its_forward():
    (alike, weight), other = run_ranks(armed, 2)
    assert (alike, weight) == other  # of both ranks' rows, whichever it was
    assert alike == [True] * 3


def test_a_gradient_has_two_names():
    x = torch.ones(2, requires_grad=True)
    x.sum().backward()
    assert all(getattr(x, name) is x.grad for name in torch_internals.GRADIENTS)
    assert {name for name in dir(torch.Tensor) if name.strip("_") == "grad"} == set(
        torch_internals.GRADIENTS
    )


def test_it_is_known_whether_something_was_compiled():
    check = (
        "import torch\nfrom autoddp import torch_internals\n"
        "print(torch_internals.compiles())\n"
        "p = torch.ones(2, requires_grad=True)\ntorch.optim.SGD([p], 0.1)\n"
        "print(torch_internals.compiles())\n"
        "torch.compile(lambda x: x, backend='eager')\nprint(torch_internals.compiles())"
    )
    done = run_python("-c", check)
    assert done.out.split() == ["False", "False", "True"], done.err


def test_the_accelerator_is_what_torch_was_built_for():
    """Without a look for devices, of which a fork would suffer."""
    found = torch_internals.accelerator()
    assert (found is not None and found.type == "cuda") == bool(torch.version.cuda)
    if torch.__version__ >= (2, 7):
        assert found == torch.accelerator.current_accelerator()


def test_a_group_is_bound_to_the_devices_to_which_torch_binds_it():
    cuda, other = torch.device("cuda", 0), torch.device("xpu", 0)
    assert torch_internals.bound(None) is None
    assert torch_internals.bound(cuda) == cuda
    assert torch_internals.bound(other) == (None if torch_internals.VERSION < (2, 7) else other)


def test_a_store_is_served_at_a_socket_that_listens():
    door = socket.create_server(("127.0.0.1", 0))
    port = door.getsockname()[1]
    store = torch_internals.store_behind(door)
    dist.TCPStore("127.0.0.1", port, is_master=False).set("a", "b")
    assert (store.port, store.get("a")) == (port, b"b")


def test_a_store_is_reached_by_another_connection():
    served = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    theirs = dist.PrefixStore("of/torch", served)  # as torch makes one
    ours = torch_internals.prefixed("ours", torch_internals.prefixed("of/ours", theirs))
    for name, store in {"served": served, "theirs": theirs, "ours": ours}.items():
        store.set(name, "a")
        other = torch_internals.another_connection(store)
        assert other is not store
        assert other.get(name) == b"a"
        other.set(name, "b")
        assert store.get(name) == b"b"
        assert other.timeout == store.timeout
        again = torch_internals.another_connection(other)
        assert again.get(name) == b"b"


def test_a_fork_leaves_the_connection_of_its_parent_alone(monkeypatch):
    """Torch up to 2.7 can be asked for a prefix over the store's connection alone."""
    served = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ours = torch_internals.prefixed("ours", dist.PrefixStore("of/torch", served))
    monkeypatch.delattr(torch_internals, "_prefix_of")
    torch_internals.another_connection(ours).set("a", "b")
    assert (ours.get("a"), served.get("of/torch/ours/a")) == (b"b", b"b")


def test_a_store_in_a_file_has_no_other_connection_to_make(tmp_path):
    store = dist.PrefixStore("of/torch", dist.FileStore(str(tmp_path / "store")))
    torch_internals.another_connection(store).set("a", "b")
    assert store.get("a") == b"b"


def walks_a_graph_of_before(group):
    """A weight is saved in a graph, and a replica is made before this graph is walked."""
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    x = torch.ones(1, 2, requires_grad=True)
    loss = (model(x) * model(x)).sum()
    before = model.weight._version
    replica = torch_internals.replica_of(model, group.pg)
    with torch.enable_grad():
        replica(x.detach())
    loss.backward()
    return before == model.weight._version, x.grad.tolist()


def test_a_graph_that_saved_a_weight_is_walked_after_a_replica_was_made_of_it():
    assert run_ranks(walks_a_graph_of_before, 2) == [(True, [[4.0, 4.0]])] * 2


def test_torchs_agent_sets_the_handler_that_it_is_given(monkeypatch, tmp_path):
    """Torch up to 2.9 sets one whatever the variable says."""
    numbers = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT
    named = ",".join(number.name for number in numbers)
    before = {number: signal.getsignal(number) for number in numbers}

    def handler(number, frame):
        """Do nothing."""

    try:
        with monkeypatch.context() as patch, torch_internals.agent_hands_signals_to(handler):
            patch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", named)
            logs = DefaultLogsSpecs(log_dir=str(tmp_path))
            ranks = start_processes(
                "test", handler, {0: (0, None)}, {0: {}}, logs_specs=logs, start_method="fork"
            )
        assert {signal.getsignal(number) for number in numbers} == {handler}
        assert not ranks.wait().failures
    finally:
        for number, known in before.items():
            signal.signal(number, known)


def test_nothing_is_written_to_stdout_when_gloo_connects():
    code = (
        "from tests.support.ranks import run_ranks\n"
        "print('before', flush=True)\n"
        "print(run_ranks(lambda group: group.rank, 2))"
    )
    done = run_python("-c", code, cwd=ROOT)
    assert done.out.splitlines() == ["before", "[0, 1]"], done.err
