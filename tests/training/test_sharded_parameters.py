"""Scripts with sharded parameters print and write what one process does, on 2 and 3 ranks.

Their names say what users of FSDP suffer from, or what a script may do with parameters.
"""

from __future__ import annotations

import filecmp
import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from autoddp.errors import BadInput
from autoddp.torch_internals import SavedTensors
from tests.support import training
from tests.support.same import same_run, same_terminal

SCRIPTS = {p.stem: p for p in sorted(Path(__file__).parents[1].glob("scripts/sharded/*.py"))}
RTOL = 1e-9
LOOSER = {"in_bfloat16": 5e-2}
APART = {"limited", "resumed", "saved_and_tied"}  # they have tests of their own
RANKS = training.TWO_OR_THREE


def in_one_process(warm, name, *arguments, folder):
    want = warm.run("python", str(SCRIPTS[name]), *arguments, folder=folder)
    assert not want.code, want.err
    return want


def on_ranks(warm, nproc, name, *arguments, folder):
    options = ["--nproc", str(nproc), "--parameters", "sharded"]
    got = warm.run("autoddp", "run", *options, str(SCRIPTS[name]), *arguments, folder=folder)
    assert "elements of parameters are sharded" in got.err, got.err
    return got


@RANKS
@pytest.mark.parametrize("name", sorted({*SCRIPTS} - APART))
def test_ranks_give_what_one_process_gives(name, nproc, warm, tmp_path):
    if name == "unnoticed_writes" and not SavedTensors.nest:
        pytest.skip("torch keeps what it has saved itself, and raises")
    want = in_one_process(warm, name, folder=tmp_path / "python")
    got = on_ranks(warm, nproc, name, folder=tmp_path / "ranks")
    same_run(want, got, LOOSER.get(name, RTOL))


@RANKS
def test_files_are_one_process_s_to_the_byte(nproc, warm, tmp_path):
    """Whole, plain tensors; what shares memory is written once, and shares it when it is loaded."""
    want = in_one_process(warm, "saved_and_tied", "rounded", folder=tmp_path / "python")
    got = on_ranks(warm, nproc, "saved_and_tied", "rounded", folder=tmp_path / "ranks")
    same_terminal(want, got, 0)
    names = sorted(path.name for path in want.folder.iterdir())
    assert names == sorted(path.name for path in got.folder.iterdir())
    assert len(names) == 12
    assert filecmp.cmpfiles(want.folder, got.folder, names, shallow=False)[0] == names


@RANKS
@pytest.mark.parametrize("goes_on", [1, 2, 3])
def test_a_run_goes_on_with_any_number_of_ranks(nproc, goes_on, warm, tmp_path):
    """From a checkpoint of one process or of ranks, in one process or on ranks."""
    if nproc == goes_on:
        nproc = 1
    want = in_one_process(warm, "resumed", "last.pt", folder=tmp_path / "python")
    want = in_one_process(warm, "resumed", "next.pt", folder=tmp_path / "python")
    first = tmp_path / "first"
    if nproc == 1:
        in_one_process(warm, "resumed", "last.pt", folder=first)
    else:
        on_ranks(warm, nproc, "resumed", "last.pt", folder=first)
    if goes_on == 1:
        got = in_one_process(warm, "resumed", "next.pt", folder=first)
    else:
        got = on_ranks(warm, goes_on, "resumed", "next.pt", folder=first)
    same_run(want, got, RTOL)


def memories():
    """The memory of all tensors that are no wrappers: its bytes by its address."""
    gc.collect()
    # `is`: the classes of sharded tensors equal torch.Tensor
    found = [x for x in gc.get_objects() if type(x) is Tensor or type(x) is nn.Parameter]
    memory = [x.untyped_storage() for x in found if x.layout is torch.strided]
    return {each.data_ptr(): each.nbytes() for each in memory}


def held_by_a_rank():
    """Bytes of a model, its gradients, two states and an average, at rest after some steps."""
    before = memories()
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)])
    whole = sum(p.nbytes for p in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    average = [p.detach().clone() for p in model.parameters()]
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(4, 64)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        torch._foreach_lerp_(average, [p.detach() for p in model.parameters()], 0.1)
    shares = [share(model, before, whole)]  # of states as they were made
    optimizer.load_state_dict(optimizer.state_dict())
    return [*shares, share(model, before, whole)]


def share(model, before, whole):
    """Bytes held since `before` with gradients, of those of the whole model."""
    model.zero_grad()
    model(torch.ones(4, 64)).square().mean().backward()
    grads = [p.grad for p in model.parameters()]  # else they are no objects of Python
    after = memories()
    del grads
    return sum(size for at, size in after.items() if at not in before) / whole


@RANKS
def test_a_rank_holds_its_share_of_all_that_a_parameter_has(nproc):
    """The parameter, its gradient, two states and an average: five parts, each sharded."""
    for parts in training.on_ranks(held_by_a_rank, nproc, parameters="sharded"):
        assert parts == pytest.approx([5 / nproc] * 2, rel=0.03)


class Asks(Dataset):
    """Samples by a model."""

    def __init__(self, model):
        self.model = model

    def __len__(self):
        return 7

    def __getitem__(self, at):
        return self.model(torch.ones(5) * at).detach()


class Streams(IterableDataset):
    def __init__(self, model):
        self.model = model

    def __iter__(self):
        for at in range(7):
            yield self.model(torch.ones(5) * at).detach()


def in_a_thread(model):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(model, torch.ones(5)).result()


ALONE = {
    "thread": in_a_thread,
    "rows": lambda model: [*DataLoader(Asks(model), 2)],
    "stream": lambda model: [*DataLoader(Streams(model), 2)],
}


@pytest.mark.parametrize("where", ALONE)
def test_where_other_ranks_do_not_follow_a_sharded_parameter_is_refused(where):
    """A rank would wait for them for ever; a data set may have a model of its own."""

    def refused(run):
        model, own = training.mlp(), training.mlp()
        torch.optim.SGD(model.parameters(), 0.1)
        fine = ALONE[where](own)
        with pytest.raises(BadInput, match="run with --parameters replicated"):
            ALONE[where](model)
        return fine is None or len(fine)

    assert training.on_ranks(refused, parameters="sharded") == [where == "thread" or 4] * 2
