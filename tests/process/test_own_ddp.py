"""Scripts that distribute themselves: launched as their author meant, or seen as one process."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from autoddp.process import own_ddp
from autoddp.process.own_ddp import Kind
from autoddp.process.script import Script
from tests.support.cli import run_python
from tests.support.same import same_text

pytestmark = pytest.mark.slow

RTOL = 1e-9
ATTEMPTS = 4  # torch's own ranks abort at their end now and then

TRAIN = """
import argparse
import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def train(rank, distributed=True):
    torch.manual_seed(0)
    x = torch.randn(22, 3, dtype=torch.float64)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    model = torch.nn.Linear(3, 1).double()
    if distributed:
        model = DDP(model)
    sampler = DistributedSampler(data) if distributed else None
    loader = DataLoader(data, batch_size=4, sampler=sampler, shuffle=sampler is None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for a, b in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(a), b)
            loss.backward()
            optimizer.step()
    weights = [p.tolist() for p in model.parameters()]
    size = dist.get_world_size() if distributed else 1
    os.write(1, f"rank {rank} of {size} {loss.item()} {weights}\\n".encode())
"""

# They all train as `env` does under torchrun.
RANKS = {
    "env": """
        dist.init_process_group("gloo")
        train(int(os.environ["LOCAL_RANK"]))
        dist.destroy_process_group()
    """,
    "--local_rank": """
        parser = argparse.ArgumentParser()
        parser.add_argument("--local_rank", type=int, default=-1)
        args = parser.parse_args()
        dist.init_process_group(backend="gloo")
        train(args.local_rank)
    """,
    "a helper": """
        import helpers.ranks
        helpers.ranks.set_up()
        train(dist.get_rank())
    """,
}
# And so do these, which start their ranks.
STARTERS = {
    "spawn tcp": """
        def main(rank, port):
            dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", \
rank=rank, world_size=2)
            train(rank)

        if __name__ == "__main__":
            import socket
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            mp.spawn(main, args=(port,), nprocs=2)
    """,
}
HELPERS = {
    "__init__.py": """
        from .ranks import set_up

        class Trainer:
            def __init__(self):
                self.rank = set_up()
    """,
    "ranks.py": """
        import torch.distributed as dist

        def set_up():
            if not dist.is_initialized():
                dist.init_process_group("gloo")
            return dist.get_rank()
    """,
}
EITHER = """
distributed = int(os.environ.get("RANK", -1)) != -1
if distributed:
    dist.init_process_group("gloo")
train(int(os.environ.get("RANK", 0)), distributed)
"""
# read as a call of the function in helpers/ranks.py
OF_ANOTHER_CLASS = """
import helpers.ranks

class Model:
    def set_up(self): pass

Model().set_up()
train(0, False)
"""
BY_SPAWN = """
def main(rank, size):
    if size > 1:
        dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/met", \
rank=rank, world_size=size)
    train(rank, size > 1)

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=1)
    size = parser.parse_args().size
    if size > 1:
        mp.start_processes(main, args=(size,), nprocs=size, start_method="fork")
    else:
        main(0, 1)
"""
BY_PROCESS = """
import sys

def main(rank):
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/met", \
rank=rank, world_size=2)

if __name__ == "__main__" and sys.argv[1:]:
    os.environ["RANK"] = "0"
    ranks = [mp.get_context("spawn").Process(target=main, args=(rank,)) for rank in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    print([each.exitcode for each in ranks])
"""
ASKS = """
def reduce_value(value):
    if not (dist.is_available() and dist.is_initialized()):
        return value
    dist.all_reduce(value)
    return value / dist.get_world_size()

print(reduce_value(torch.ones(1)), "RANK" in os.environ, int(os.environ.get("WORLD_SIZE", 1)))
print(len(DistributedSampler(range(10), num_replicas=1, rank=0)))
train(0, dist.is_initialized())
"""


@pytest.fixture
def script(tmp_path):
    """Writes a script and its helpers; returns its path."""
    return lambda source: write(tmp_path, source)


def write(folder: Path, source: str) -> str:
    """A script that trains, and two helpers beside it."""
    (folder / "helpers").mkdir()
    for name, text in HELPERS.items():
        (folder / "helpers" / name).write_text(textwrap.dedent(text))
    (folder / "job.py").write_text(TRAIN + textwrap.dedent(source))
    return str(folder / "job.py")


def lines(out: str) -> list[str]:
    """Of the ranks, in their order."""
    return sorted(out.splitlines())


@pytest.fixture(scope="module")
def by_torchrun(tmp_path_factory):
    """What torchrun makes of `env`."""
    path = write(tmp_path_factory.mktemp("torchrun"), RANKS["env"])
    for _ in range(ATTEMPTS):
        done = run_python("-m", "torch.distributed.run", "--nproc-per-node", 2, path)
        if done.rc == 0:
            break
    assert done.rc == 0, done.err
    assert len(lines(done.out)) == 2
    return lines(done.out)


def ours(err: str) -> list[str]:
    """Our lines."""
    return [line for line in err.splitlines() if line.startswith("[autoddp]")]


# ---- launched as the author meant


@pytest.mark.parametrize("how", [*RANKS, *STARTERS])
def test_ranks_are_what_torchrun_makes_of_them(how, script, warm, by_torchrun, tmp_path):
    path = script((RANKS | STARTERS)[how])
    for _ in range(ATTEMPTS):
        done = warm.run("autoddp", "run", "-n", "2", path, folder=tmp_path / "run")
        if done.code == 0:
            break
    assert done.code == 0, done.err
    assert lines(done.out) == by_torchrun
    (said,) = ours(done.err)
    itself = "starts its ranks" if how in STARTERS else "calls init_process_group"
    assert f"{itself} itself" in said
    assert ("with --local" in said) == how.startswith("--local")


# ---- both ways


def test_a_script_of_two_ways_goes_its_authors_if_told_so(script, warm, by_torchrun, tmp_path):
    command = ["autoddp", "run", "-n", "2", "--own-ddp", "yes", script(EITHER)]
    done = warm.run(*command, folder=tmp_path / "run")
    assert lines(done.out) == by_torchrun, done.err
    (said,) = ours(done.err)
    assert "calls init_process_group itself" in said


ONE_PROCESS = {
    "either": EITHER,
    "spawn": BY_SPAWN,
    "asks": ASKS,
}


@pytest.mark.parametrize("how", ONE_PROCESS)
def test_what_python_runs_as_one_process_is_one(how, script, warm, tmp_path):
    path = script(ONE_PROCESS[how].replace("os.write(1, f", "print(f"))
    want = warm.run("python", path, folder=tmp_path / "python")
    got = warm.run("autoddp", "run", "-n", "2", path, folder=tmp_path / "run")
    assert (want.code, got.code) == (0, 0), got.err
    assert "rank 0 of 1" in want.out
    assert "global view" in ours(got.err)[0]
    same_text(want.out, got.out, RTOL, "stdout")


def test_by_its_arguments_it_starts_ranks_after_all(script, warm, by_torchrun, tmp_path):
    path = script(BY_SPAWN)
    done = warm.run("autoddp", "run", "-n", "2", path, "--size", "2", folder=tmp_path / "auto")
    assert (done.code, done.out) == (1, "")
    assert "calls start_processes, where ranks see one process; autoddp run --own-ddp" in done.err
    command = ["autoddp", "run", "-n", "2", "--own-ddp", "yes", path, "--size", "2"]
    done = warm.run(*command, folder=tmp_path / "yes")
    assert lines(done.out) == by_torchrun, done.err


def test_workers_that_meet_are_those_of_rank_0(script, warm, tmp_path):
    """Those of another rank would meet them at the same address, as the same ranks."""
    path = script(BY_PROCESS)
    logs = tmp_path / "logs"
    command = ["autoddp", "run", "-n", "2", "--log-dir", str(logs), path, "--several"]
    done = warm.run(*command, folder=tmp_path / "run")
    assert (done.code, done.out) == (0, "[0, 0]\n"), done.err
    assert "init_process_group" not in (logs / "rank1.log").read_text()


def test_a_rank_that_it_starts_as_a_program_is_refused(script, warm, tmp_path):
    path = script(
        "import subprocess\nsubprocess.Popen('true', env={**os.environ, 'LOCAL_RANK': '1'})"
    )
    done = warm.run("autoddp", "run", "-n", "2", path, folder=tmp_path / "run")
    assert (done.code, done.out) == (1, "")
    assert "starts a rank, where ranks see one process" in done.err


def test_ranks_that_would_each_train_by_themselves_do_not(script, warm, tmp_path):
    done = warm.run("autoddp", "run", "-n", "2", script(OF_ANOTHER_CLASS), folder=tmp_path / "auto")
    assert (done.code, done.out) == (1, "")
    assert (
        "was not called before the first step: each of 2 processes would train by itself"
        in done.err
    )


# ---- what the source says

JOINS = "init_process_group()\nmain()"


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("import torch.distributed as dist\ndist.init_process_group('gloo')", Kind.RANKS),
        (
            "def main():\n    try: os.environ['RANK']\n    except KeyError: return\n    " + JOINS,
            Kind.VIEW,
        ),
        ("def set_up():\n    dist.init_process_group()", Kind.VIEW),
        ("import helpers.ranks", Kind.VIEW),
        ("import helpers\nhelpers.Trainer()", Kind.RANKS),
        (
            "def main():\n    if not args.ranks:\n        return\n    init_process_group()\nmain()",
            Kind.VIEW,
        ),
        ("if 'LOCAL_RANK' in os.environ:\n    init_process_group()", Kind.VIEW),
        ("'RANK' in os.environ and init_process_group()", Kind.VIEW),
        ("ours = not dist.is_initialized()\nif ours: init_process_group()", Kind.RANKS),
        ("if cuda:\n    def put(): return 1\ninit_process_group()", Kind.RANKS),
        ("if win:\n    init_process_group(1)\nelse:\n    init_process_group()", Kind.RANKS),
        ("if args.local_rank >= 0:\n    init_process_group()", Kind.VIEW),
        ("mp.spawn(work, nprocs=2)\ndef work(): pass", Kind.VIEW),
        ("def main(): init_process_group()\nmp.spawn(main, (), 2)", Kind.ONCE),
        (
            "def main(): init_process_group()\nif several: mp.spawn(main, nprocs=2)\nelse: main()",
            Kind.VIEW,
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Kind) else value[:40],
)
def test_a_script_that_does_its_own_ddp_is_recognised(tmp_path, source, kind):
    write(tmp_path, "")
    path = tmp_path / "s.py"
    path.write_text(source)
    assert own_ddp.of(Script(str(path)), "auto").kind is kind
