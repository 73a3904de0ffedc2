"""A model that does not fit: it is trained under a limit of memory, and `auto` finds that it is."""

import pytest
import torch
from torch import nn

from autoddp.errors import LostGradient
from autoddp.torch_internals import SavedTensors
from autoddp.training.parameters import choice
from autoddp.training.parameters.choice import Choice
from autoddp.training.parameters.shard import held, is_shard
from tests.support.same import same_text
from tests.support.training import on_ranks
from tests.support.warm import ROOT

LIMITED = str(ROOT / "tests/scripts/sharded/limited.py")
LIMIT = "170"  # megabytes; parameters of 84 take 336 with gradients and AdamW's states
FITS = "memory was too small; --parameters sharded divides parameters"


@pytest.fixture
def limited(warm, tmp_path):
    """What a command prints of the script under a limit."""

    def run(*options, limit=LIMIT):
        command = ["autoddp", "run", *options] if options else ["python"]
        return warm.run(*command, LIMITED, limit, folder=tmp_path / "-".join(["run", *options]))

    return run


@pytest.mark.skipif(not SavedTensors.nest, reason="this torch keeps what a backward needs")
def test_ranks_train_what_one_process_cannot(limited):
    """Each rank has the same limit as the process that fails."""
    assert limited().code != 0
    want, got = limited(limit="0"), limited("--nproc", "4", "--parameters", "sharded")
    assert got.code == 0, got.err
    same_text(want.out, got.out, 1e-9, "stdout")


def test_the_error_without_sharding_names_it(limited):
    got = limited("--nproc", "2", "--parameters", "replicated")
    assert got.code != 0
    assert FITS in got.err


def model():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))


def trained():
    """What this rank holds of a model, its gradients and its states, and all of it, in bytes."""
    net = model().to("cpu")
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    kept = [*net.parameters(), *(p.grad for p in net.parameters())]
    kept += [x for state in optimizer.state.values() for x in state.values() if x.dim()]
    assert all(map(is_shard, kept)), [type(x) for x in kept if not is_shard(x)]
    return sum(held(x).local.nbytes for x in kept), sum(x.nbytes for x in kept)


@pytest.mark.parametrize("nproc", [2, 3])
def test_a_rank_holds_its_part(nproc):
    """Of parameters, gradients and states, all ranks' parts alike but for a few elements."""
    found = on_ranks(trained, nproc, parameters="sharded")
    parts, (whole, *_) = zip(*found, strict=True)
    assert sum(parts) == whole
    assert max(parts) <= whole / nproc + 1000


class Alone:
    """A group of one rank."""

    rank, size = 0, 1

    def all_reduce(self, x, op):
        return x


@pytest.mark.parametrize(("free", "sharded"), [(1 << 34, False), (1 << 28, True)])
def test_auto_shards_what_does_not_fit(monkeypatch, free, sharded):
    monkeypatch.setattr(choice, "free_on_host", lambda ranks: free // ranks)
    large = [nn.Parameter(torch.empty(1 << 24))]
    why = Choice("auto", Alone(), 1).why(large, torch.device("cpu"))
    assert bool(why) == sharded
    assert Choice("replicated", Alone(), 1).why(large, torch.device("cpu")) == ""
    assert Choice("sharded", Alone(), 1).why(large, torch.device("cpu"))


def test_models_that_fill_a_host_s_memory_are_said_before_it_is_full(monkeypatch):
    """S11: each rank of a node builds the model."""
    large = [nn.Parameter(torch.empty(1 << 25))]
    monkeypatch.setattr(choice, "free_on_host", lambda ranks: (1 << 28) // ranks)
    assert "of host memory, of which 0.3 GB is left" in Choice("auto", Alone(), 8).crowding(large)
    assert not Choice("auto", Alone(), 2).crowding(large)
    assert not Choice("auto", Alone(), 8).crowding([large[0].to("meta")])


def test_frozen_parameters_need_no_states():
    frozen = nn.Parameter(torch.empty(1000), requires_grad=False)
    assert choice.needed([frozen]) == (4000, 0)
    assert choice.needed([nn.Parameter(torch.empty(1000))]) == (4000, 12000)


def test_a_limit_of_a_cgroup_counts(monkeypatch, tmp_path):
    limit, used = tmp_path / "max", tmp_path / "current"
    limit.write_text("5000000\n")
    used.write_text("1000000\n")
    monkeypatch.setattr(choice, "LIMITS", ((limit, used), (tmp_path / "none", used)))
    assert choice.free_on_host(2) == 2000000
    limit.write_text("max\n")
    assert choice.free_on_host(1) == choice._available() or choice.free_on_host(1) > 2000000


def below_autograd():
    """An operator that autograd has passed, as in an extension written in C++."""
    weight = nn.Linear(80, 80).to("cpu").weight
    with torch._C.DisableTorchFunctionSubclass():
        with torch.no_grad():
            there = (weight * 2).sum().item()
        try:
            weight * 2
        except LostGradient as error:
            return there, str(error)


def test_a_gradient_that_would_be_lost_is_an_error():
    (there, error), other = on_ranks(below_autograd, 2, parameters="sharded")
    assert other == (there, error)
    assert "met a sharded parameter below autograd" in error
