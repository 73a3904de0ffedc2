"""What torch does beyond its documentation and autoddp relies on, where a new torch may differ."""

from __future__ import annotations

import os
import socket
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.fx.experimental.proxy_tensor import make_fx

from autoddp import torch_internals
from autoddp.report import is_users
from tests.support.ranks import run_ranks


def _compiled(group, folder):
    from torch._inductor.codecache import PyCodeCache

    os.chdir(folder)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    _, path = PyCodeCache.write("x = 1")
    own = [folder / "train.py", Path(path).with_name("helpers.py")]
    return path.startswith(str(folder)), is_users(path), [is_users(str(p)) for p in own]


def test_code_that_torch_compiles_is_not_the_users(tmp_path):
    """Its files, whose names differ between ranks, may be beside those of the script."""
    assert run_ranks(_compiled, 1, tmp_path) == [(True, False, [True, True])]


def test_backwards_of_functions_and_of_operators_are_distinguished():
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


def test_uses_of_a_tensor_and_of_its_memory_are_counted():
    x = torch.ones(3)
    assert (torch_internals.tensor_uses(x), torch_internals.storage_uses(x)) == (1, 1)
    y = x.detach()
    assert (torch_internals.tensor_uses(x), torch_internals.storage_uses(x)) == (1, 2)
    del y
    held = (x.requires_grad_() * x).grad_fn  # a graph holds the tensor
    assert torch_internals.tensor_uses(x) > 1
    del held


def test_the_engines_thread_is_recognised_and_runs_callbacks_at_the_end():
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


def test_transforms_tracing_and_a_compilers_proxies_are_recognised():
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


def armed(group):
    """Gradients by a replica whose forward is never called."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    replica = torch_internals.replica_of(model, group.pg)
    means = []
    for _ in range(4):
        x = torch.full((1, 3), 1.0 + group.rank)
        model.zero_grad()
        torch_internals.arm(replica)
        model(x).sum().backward()
        means.append([p.grad.clone() for p in model.parameters()])
    return [all(map(torch.equal, means[0], later)) for later in means[1:]], means[0][-2][0].tolist()


def test_a_replica_is_armed_without_its_forward():
    (alike, weight), other = run_ranks(armed, 2)
    assert (alike, weight) == other  # of both ranks' rows, whichever it was
    assert alike == [True] * 3


def test_the_accelerator_is_what_torch_was_built_for():
    """Without a look for devices, of which a fork would suffer."""
    found = torch_internals.accelerator()
    assert (found is not None and found.type == "cuda") == bool(torch.version.cuda)
    if torch.__version__ >= (2, 7):
        assert found == torch.accelerator.current_accelerator()


def test_a_store_is_served_at_a_socket_that_listens():
    door = socket.create_server(("127.0.0.1", 0))
    port = door.getsockname()[1]
    store = torch_internals.store_behind(door)
    dist.TCPStore("127.0.0.1", port, is_master=False).set("a", "b")
    assert (store.port, store.get("a")) == (port, b"b")


def test_a_store_has_another_connection():
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


def test_a_graph_that_saved_a_weight_stays_valid_after_a_replica():
    assert run_ranks(walks_a_graph_of_before, 2) == [(True, [[4.0, 4.0]])] * 2
