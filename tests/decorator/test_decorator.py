"""`@distributed`: one process becomes N ranks during a call."""

from __future__ import annotations

import re
import signal
import textwrap
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Literal, get_type_hints

import pytest

from autoddp import distributed
from autoddp.decorator import NAMES
from autoddp.decorator.keywords import Keywords
from autoddp.errors import BadInput
from autoddp.options import ROWS, Options
from tests.support.cli import run_python

pytestmark = pytest.mark.slow

THREAD = (
    "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
)
POOL = (
    "import os, torch\nos.environ['OMP_NUM_THREADS'] = '2'\ntorch.set_num_threads(2)\n"
    "a = torch.ones(600, 600)\n"
    "for _ in range(3): (a @ a).exp().sum()\n"
)
TRAINS = """
import os, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from autoddp import distributed

print("before")
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
x = torch.randn(37, 6)
data = TensorDataset(x, (x.sum(1) > 0).long())
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), \
nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
open("setup.txt", "a").write("made\\n")

@distributed
def main(epochs):
    for epoch in range(epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {loss.item():.9f}")
    torch.save(model.state_dict(), "model.pt")
    INSIDE
    return {"loss": loss, "rows": inputs}

def weights():
    return sum(p.abs().sum().item() for p in model.state_dict().values())

def show(got):
    print(f"got {got['loss'].item():.9f} {got['rows'].sum().item():.9f}")
    print(f"weights {weights():.9f}")
"""
ONCE = (
    "show(main(2))\nmodel(x).sum().backward()\noptimizer.step()\nprint(f'later {weights():.9f}')\n"
)
TWICE = "show(main(1))\nprint('between')\nopen('between.txt', 'a').write('once')\nshow(main(1))\n"


@pytest.fixture
def python(warm, tmp_path, monkeypatch):
    """Run the text of a script with `python` in its own folder."""

    def run(source, nproc=None, timeout=240, name="run"):
        path = tmp_path / "train.py"
        head = f"import os, tempfile\ntempfile.tempdir = {str(tmp_path / 'tmp')!r}\n"
        head += f"os.environ['AUTODDP_NPROC'] = '{nproc}'\n" if nproc else ""
        (tmp_path / "tmp").mkdir(exist_ok=True)
        path.write_text(head + textwrap.dedent(source))
        done = warm.run("python", str(path), folder=tmp_path / name, timeout=timeout)
        assert not done.left, f"{done.left} outlived the program"
        return done

    return run


def leftovers(tmp_path):
    return list((tmp_path / "tmp").iterdir())


def ours(done):
    return [line for line in done.err.splitlines() if line.startswith("[autoddp]")]


# ---- the numbers of one process


@pytest.mark.parametrize("nproc", [2, 3])
def test_one_process_before_inside_and_after(python, nproc, tmp_path):
    source = TRAINS.replace("INSIDE", "") + ONCE
    plain = python(source, 1, name="plain")
    many = python(source, nproc, name="many")
    assert plain.code == many.code == 0, many.err
    assert many.out == plain.out
    assert f"[autoddp] {nproc} ranks on 1 node" in many.err
    assert not plain.err
    assert (many.folder / "setup.txt").read_text() == "made\n"
    assert (many.folder / "model.pt").exists()
    assert not leftovers(tmp_path)


def test_twice_after_a_pool(python, tmp_path):
    source = (
        POOL
        + TRAINS.replace("INSIDE", "(torch.ones(600, 600) @ torch.ones(600, 600)).exp()")
        + TWICE
    )
    plain = python(source, 1, name="plain")
    many = python(source, 2, name="many")
    assert many.code == 0, many.err
    assert many.out == plain.out
    assert (many.folder / "setup.txt").read_text() == "made\n"
    assert (many.folder / "between.txt").read_text() == "once"
    assert not leftovers(tmp_path)


# ---- where a fork is not safe


CANNOT = "from autoddp import distributed\n@distributed(nproc=2)\ndef main(): INSIDE\n"
AGAINST = {
    "threads": (THREAD, "other threads run (Thread-1 (sleep))"),
    "children": (
        "import multiprocessing, time\n"
        "multiprocessing.get_context('fork').Process("
        "target=time.sleep, args=(1000,), daemon=True).start()\n",
        "it has child processes",
    ),
}


@pytest.mark.parametrize("what", AGAINST)
def test_an_obstacle_to_a_fork_is_named_with_the_command(python, what):
    before, named = AGAINST[what]
    done = python(before + CANNOT.replace("INSIDE", "print('inside')") + "main()\n")
    assert (done.code, done.out) == (1, "")
    said = done.err.splitlines()[-1]
    assert f"BadInput: main() needs 2 ranks, but this process cannot be forked ({named}); " in said
    command = r"autoddp run --nproc 2 --placement sharded \S+/train.py"
    assert re.search(rf"; run `{command}`, which needs no fork here", said)
    assert said.endswith(", or make the call before that happens")


# ---- what one process sees


def test_after_the_call_the_process_is_as_before(python):
    done = python(
        """
        import gc, os, random, sys, threading, torch, autoddp
        from autoddp import distributed
        from autoddp.process.features import FEATURES
        from autoddp.patching import ABSENT, find
        def slots():
            found = {}
            for feature in FEATURES:
                for patch in feature.patches():
                    for target in patch.targets:
                        name = target.partition(":")[0]
                        if name in sys.modules:
                            owner, attribute, there = find(target, sys.modules[name], True)
                            if there is not ABSENT:
                                found[target] = vars(owner).get(attribute)
            return found
        torch.set_num_threads(2)
        before = slots(), dict(os.environ), sys.excepthook, torch.get_num_threads()
        @distributed(nproc=2, view="local")
        def main(a, *, b=2):
            "Doc."
            assert os.environ["WORLD_SIZE"] == "2" and autoddp.world_size() == 2
            os.environ["MINE"] = "kept"
            return a + b, torch.get_num_threads()
        print(main(1), main.__name__, main.__doc__, callable(main.__wrapped__))
        import inspect; print(inspect.signature(main))
        assert os.environ.pop("MINE") == "kept"
        after = slots(), dict(os.environ), sys.excepthook, torch.get_num_threads()
        print([k for k in before[0] if before[0][k] is not after[0][k]], before[1:] == after[1:])
        print(autoddp.world_size(), torch.distributed.is_initialized(), \
torch.distributed.group.WORLD)
        print(open(f"/proc/self/task/{os.getpid()}/children").read().split())
        """
    )
    assert done.code == 0, done.err
    assert done.out == "(3, 1) main Doc. True\n(a, *, b=2)\n[] True\n1 False None\n[]\n"


def test_nested_calls_and_methods_are_plain_calls(python):
    done = python(
        """
        import autoddp
        from autoddp import distributed
        @distributed(nproc=3)
        def inner(): return autoddp.world_size()
        class Trainer:
            @distributed(nproc=2)
            def fit(self): return inner(), \
self.fit() if not hasattr(self, "seen") and self.see() else 0
            def see(self): self.seen = True; return True
        print(Trainer().fit())
        """
    )
    assert (done.code, done.out) == (0, "(2, (2, 0))\n"), done.err


# ---- failures


FAILS = """
import autoddp, os, signal, sys, time, torch
from autoddp import distributed
@distributed(nproc=3)
def main():
    rank = autoddp.rank()
    print("x" * rank, flush=True)
    WHAT
    for _ in range(100000): torch.nn.Linear(2, 2)(torch.ones(4, 2)).sum().backward()
try: print(main())
finally: print("after")
"""


def test_exceptions_are_those_of_a_plain_call(python, tmp_path):
    source = FAILS.replace("WHAT", "raise KeyError('why')").replace("finally", "except KeyError")
    done = python(source + "print('caught')\nsys.exit(3)")
    assert (done.code, done.out) == (3, "\nafter\ncaught\n"), done.err
    assert "Traceback" not in done.err
    assert not leftovers(tmp_path)


def test_a_traceback_has_only_frames_of_the_script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(FAILS.replace("WHAT", "raise ValueError('why')"))
    many, plain = run_python(path), run_python(path, env={"AUTODDP_NPROC": "1"})
    assert many.rc == plain.rc == 1
    assert many.theirs == plain.theirs
    assert "autoddp" not in many.theirs
    assert plain.theirs.endswith("ValueError: why\n")


def test_a_killed_rank_is_named_and_ends_the_program(python):
    done = python(FAILS.replace("WHAT", "if rank == 1: signal.raise_signal(signal.SIGKILL)"))
    assert done.code == 128 + 9
    assert "[autoddp] rank 1 was killed by SIGKILL (signal 9)" in done.err
    assert done.err.endswith(":\nx\n")  # the end of its log
    assert "after" not in done.out


def test_a_rank_that_raises_alone_is_named_with_its_log(python):
    done = python(
        FAILS.replace("WHAT", "if rank == 2: raise ValueError('only me')\n    time.sleep(100)")
    )
    assert done.code == 1
    assert (
        "[autoddp] rank 2 raised an exception in main(), unlike rank 0; the end of its log"
        in done.err
    )
    assert done.err.endswith("ValueError: only me\n")


def test_an_interrupt_ends_all(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(FAILS.replace("WHAT", "if rank == 0: signal.raise_signal(signal.SIGINT)"))
    done = run_python(path, timeout=240)
    assert done.rc == -signal.SIGINT
    assert done.err.endswith("KeyboardInterrupt\n")


def test_no_rank_outlives_rank_0(python):
    done = python(
        FAILS.replace("WHAT", "if rank == 0: time.sleep(0.5); signal.raise_signal(signal.SIGKILL)")
    )
    assert done.code == -signal.SIGKILL
    assert "after" not in done.out


# ---- other ways to run


WORKERS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from autoddp import distributed
print("imported as", __name__)

@distributed(nproc=2)
def main():
    data = TensorDataset(torch.arange(6.0))
    loader = DataLoader(data, 3, num_workers=1, multiprocessing_context="spawn")
    return [x.tolist() for x, in loader]

if __name__ == "__main__":
    print(main())
"""


def test_importing_it_starts_nothing_also_in_spawned_workers(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(WORKERS)
    done = run_python(path)
    assert done.rc == 0, done.err
    assert done.out.splitlines()[-1] == "[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]"
    assert [line for line in done.ours if " ranks on " in line] == done.ours[:1], done.err
    done = run_python(
        "-c", "import sys, train; print('torch.distributed' in sys.modules)", cwd=tmp_path
    )
    assert done.rc == 0, done.err
    assert "[autoddp]" not in done.err


JOINS = (
    TRAINS.replace("INSIDE", "")
    + "show(main(1))\nopen('after.txt', 'a').write('once')\nshow(main(1))\n"
)


def test_under_autoddp_run_it_is_a_plain_call(warm, python, tmp_path):
    plain = python(JOINS, 1, name="plain")
    for nproc in ("1", "2"):
        path = str(tmp_path / "train.py")
        done = warm.run("autoddp", "run", "-n", nproc, path, folder=tmp_path / f"run{nproc}")
        assert done.code == 0, done.err
        assert done.out == plain.out
        assert (done.folder / "after.txt").read_text() == "once"
        assert len([line for line in ours(done) if "node" in line]) == int(nproc) - 1


# ---- options


def test_the_typed_keywords_equal_the_options():
    kinds = {**get_type_hints(Keywords)}
    more = {
        "average_every": int,
        "report": PathLike[str],
        "log_dir": PathLike[str],
    }  # turned into text
    assert kinds.pop("disable") == str | Iterable[str]
    of = {name: kind for name, kind in get_type_hints(Options).items() if name in NAMES}
    choices = {name: row.choices for name, row in ROWS.items() if row.choices and name in NAMES}
    of |= {name: Literal[words] for name, words in choices.items()}
    assert kinds == {n: of[n] | more[n] if n in more else of[n] for n in NAMES if n != "disable"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"procs": 2}, "@distributed has no option procs; it takes nproc, "),
        ({"nproc": "4"}, "--nproc is '4'; it takes a whole number"),
        ({"view": "none"}, "--view is 'none'; it takes global, local"),
    ],
    ids=["name", "text", "choice"],
)
def test_bad_options_raise_at_the_decoration(options, message):
    with pytest.raises(BadInput, match=re.escape(message)) as found:
        distributed(**options)
    assert [entry.frame.code.path for entry in found.traceback] == [Path(__file__)]


def test_names_imported_before_the_call_are_patched_in_it(python):
    """The patched function under a name of the script's own: checkpoint, time, makedirs."""
    source = (
        "from os import makedirs\nfrom time import time\nimport torch\nfrom torch import nn\n"
        "from torch.utils.checkpoint import checkpoint\n"
        "from torch.utils.data import DataLoader, TensorDataset\nfrom autoddp import distributed\n"
        "torch.set_default_dtype(torch.float64); torch.manual_seed(0)\n"
        "data = TensorDataset(torch.randn(37, 6))\n"
        "net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))\n"
        "@distributed\n"
        "def main():\n"
        "    makedirs(f'run-{time()}')\n"
        "    for (x,) in DataLoader(data, 8):\n"
        "        for reentrant in (False, True):\n"
        "            loss = checkpoint(net, x.requires_grad_(), "
        "use_reentrant=reentrant).square().mean()\n"
        "            loss.backward()\n"
        "            print(f'{loss.item():.9f} {net[0].weight.grad.norm().item():.9f}')\n"
        "main()\n"
    )
    plain, ranks = python(source, 1, name="plain"), python(source, 2, name="ranks")
    assert ranks.code == 0, ranks.err
    assert ranks.out == plain.out
    assert len(list(ranks.folder.glob("run-*"))) == 1
