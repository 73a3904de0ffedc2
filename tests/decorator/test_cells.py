"""Ranks that live on between the cells of a notebook, as real kernels execute them."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.support.notebooks import Executed, execute, forks

BEGIN = """
%load_ext autoddp
import asyncio, os, signal, threading, time, autoddp
%autoddp --nproc 2
begun = "in the cell that begins"
"""
MADE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x = torch.randn(40, 6)
loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

def step(inputs, labels):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    return loss

begun
"""
SAYS = 'print(f"{loss.item():.9f} {sum(p.norm() for p in model.parameters()):.9f}")'
TRAINED = f"for inputs, labels in loader:\n    loss = step(inputs, labels)\n{SAYS}"
CELLS = {
    "begin": BEGIN,
    "made": MADE,
    "trained": TRAINED,
    "plain": "noise = torch.rand(3)\nprint(f'{noise.sum():.9f}')\nheld = [model(inputs), loss]\n_",
    "iterator begun": f"batches = iter(loader)\nloss = step(*next(batches))\n{SAYS}",
    "iterator continued": f"for batch in batches:\n    loss = step(*batch)\n{SAYS}\nbatch[0].shape",
    "error": f"loss = step(*batch)\n{SAYS}\n1 / 0",
    "after the error": f"loss = step(*batch)\n{SAYS}\nf'{{held[1].item():.9f}}'",
    "wrong": "def (:",
    "saved": "torch.save(model.state_dict(), 'model.pt')\nopen('log.txt', 'a').write('saved ')",
    "loaded": f"model.load_state_dict(torch.load('model.pt'))\nloss = step(*batch)\n{SAYS}",
    "programs": "word = 'twice?'\n!echo {word} >> log.txt\nlines = !cat log.txt\nlines, _exit_code",
    "bash": "%%bash --out said\necho bash >> log.txt\necho out",
    "failed": "%%bash\nexit 3",
    "timed": "%%time\n" + TRAINED,
    "figure": "import matplotlib.pyplot as plt\n%matplotlib inline\nplt.plot([1, 2]);",
    "awaited": "await asyncio.sleep(0)",
    "stop": "%autoddp stop\nprint(autoddp.world_size(), said, open('log.txt').read())",
    "whole": f"print(round(held[0].sum().item() + batch[0].sum().item(), 9))\n{SAYS}",
    "alone": TRAINED,
    "again": "%autoddp --nproc 2\nloss = step(inputs, labels)",
    "trained again": TRAINED,
}
NAMES = list(CELLS)


def notebook(folder, cells=CELLS, **env) -> dict[str, Executed]:
    """Execute named cells, and return what each has shown."""
    return dict(zip(cells, execute(folder, *cells.values(), **env), strict=True))


@forks
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_notebook_is_one_script_that_grows(tmp_path, ranks):
    with ThreadPoolExecutor() as threads:
        several = threads.submit(notebook, tmp_path / "n", AUTODDP_NPROC=str(ranks))
        one = notebook(tmp_path / "1", AUTODDP_NPROC="1")
    several = several.result()
    assert several["awaited"].error.startswith("SyntaxError: 'await' outside function")
    for name in NAMES:
        if name == "timed":  # the other lines are times
            one[name].out, several[name].out = (x[name].out.split()[0] for x in (one, several))
        if name != "awaited":
            assert several[name].error == one[name].error, name
        assert (several[name].out, several[name].shown) == (one[name].out, one[name].shown), name
    errors = {name: cell.error for name, cell in one.items() if cell.error}
    assert list(errors) == ["error", "wrong", "failed"]
    assert one["stop"].out == "1 out\n saved twice?\nbash\n\n"
    said = {name: cell.ours for name, cell in several.items() if cell.ours}
    said.pop("stop", None)  # where the time went is said of a job of some seconds
    assert list(said) == ["begin", "trained", "again", "trained again"]
    assert said["begin"] == [f"[autoddp] {ranks} ranks on 1 node, gloo (no GPU here), global view"]
    assert "DataLoader at In [3], line 1: each rank" in said["trained"][0]


BETWEEN = """
seen = []

def between():
    message = {"content": {"comm_id": "slider", "data": {"method": "update"}}}
    get_ipython().kernel.shell_handlers["comm_msg"](None, None, message)
    try:
        seen.append(round(float(model(x).sum()) - expected, 9))
        model(x).sum().backward()
        open("between.txt", "w").close()
        seen.append(time.time() > 0 and os.path.exists("between.txt"))
        inputs.sum().item()
    except Exception as error:
        seen.append(f"{type(error).__name__}: {error}")

model.eval()
expected = float(model(x).sum())
if autoddp.rank() == 0:
    asyncio.get_event_loop().call_soon(between)
"""


@forks
@pytest.mark.slow
def test_what_the_kernel_runs_between_cells_meets_nobody(tmp_path):
    """The other ranks wait there: whatever they would come to, too, would hang."""
    after = f"print(seen)\n{TRAINED}\nprint(inputs.sum().item() != 0)"
    idle = "time.sleep(4)"  # longer than a wait that counts as a hang
    begin = BEGIN.replace("--nproc 2", "--nproc 2 --hang-timeout 1 --report report.json")
    cells = {"begin": begin, "made": MADE, "trained": TRAINED, "between": BETWEEN}
    done = notebook(tmp_path, {**cells, "after": after, "idle": idle, "end": after})
    assert [cell.error for cell in done.values()] == [""] * 7, done
    error = "AutoDDPError: a batch that is held by rows is read between two cells"
    assert done["after"].out.startswith(f"[0.0, True, '{error}")
    assert done["end"].out.endswith("True\n")
    deadline = time.monotonic() + 20
    report = tmp_path / "report.json"  # the kernel ends the job as it exits
    while not report.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    decisions = json.loads(report.read_text())["decisions"]
    assert any(made["what"].startswith("a widget was used between") for made in decisions)


@forks
@pytest.mark.slow
def test_what_a_rank_alone_does_ends_the_job_and_not_the_kernel(tmp_path):
    begin = "%autoddp --nproc 2 -q"
    cells = {
        "load": "%load_ext autoddp\nimport autoddp",
        "early stop": "%autoddp stop",
        "unknown": "%autoddp go",
        "begin": f"{begin}\nvalue = 1",
        "twice": begin,
        "cell": "%%autoddp -n 2\n1",
        "raised": "value = 2\nif autoddp.rank():\n    raise ValueError('mine')",
        "after": "print(value, autoddp.world_size())",
        "again": begin,
        "effect": "if autoddp.rank():\n    open('a', 'w')",
        "third": begin,
        "other": "if not autoddp.rank():\n    raise ValueError('rank 0')\nopen('b', 'w').close()",
        "end": "print(value, autoddp.world_size())",
    }
    done = notebook(tmp_path, cells)
    errors = {name: cell.error for name, cell in done.items() if cell.error}
    assert list(errors) == [
        *("early stop", "unknown", "twice", "cell", "raised", "effect", "other"),
    ]
    assert errors["early stop"] == (
        "BadInput: %autoddp stop is given without a job; %autoddp --nproc 2 begins one"
    )
    assert errors["unknown"].startswith("BadInput: %autoddp go: unrecognized arguments: go;")
    assert errors["twice"].startswith("BadInput: %autoddp is given inside a job")
    assert errors["cell"].startswith("BadInput: %%autoddp begins a job, but this cell is part")
    assert errors["raised"].startswith(
        "Disagreement: rank 1 raised ValueError in the cell, rank 0 returned from it; Traceback"
    )
    assert "rank 1 is at «open at In [10], line 2» where rank 0 is at" in errors["effect"]
    assert errors["other"].startswith("Disagreement: rank 1 ")
    assert [done[name].out for name in ("after", "end")] == ["2 1\n"] * 2


INTERRUPTED = """
def interrupt():
    time.sleep(1)
    os.killpg(os.getpgid(0), signal.SIGINT)

class Quiet(threading.Thread): pass
Quiet.__module__ = "ipykernel"
if autoddp.rank() == 0:
    Quiet(target=interrupt, daemon=True).start()
"""
KIDS = "kids = open(f'/proc/{os.getpid()}/task/{os.getpid()}/children').read().split()\n"


@forks
@pytest.mark.slow
def test_an_interrupt_ends_the_cell_and_the_job_goes_on(tmp_path):
    loop = "    \nwhile True:\n    loss = step(inputs, labels)"
    cells = {"begin": BEGIN, "made": MADE, "trained": TRAINED, "loop": INTERRUPTED + loop}
    cells |= {"next": f"print(autoddp.world_size())\n{TRAINED}", "sleep": INTERRUPTED}
    cells["sleep"] += "time.sleep(60)"
    done = notebook(tmp_path, {**cells, "end": f"print(autoddp.world_size())\n{TRAINED}"})
    for name in ("loop", "sleep"):
        assert done[name].error.startswith("KeyboardInterrupt"), done
    for name in ("next", "end"):
        assert (done[name].out[:2], done[name].error) == ("2\n", ""), done


@forks
@pytest.mark.slow
def test_no_rank_is_left_by_a_kernel_or_without_one(tmp_path):
    killed = "if autoddp.rank():\n    signal.raise_signal(9)\ntime.sleep(60)"
    kill = "!echo {kids[0]} > kids.txt\n!kill -9 $PPID"
    with ThreadPoolExecutor() as threads:
        run = partial(execute, tmp_path / "rank", BEGIN, killed, "1")
        rank = threads.submit(run)
        kernel = execute(tmp_path / "kernel", BEGIN + KIDS, kill, "1")
    rank = rank.result()
    assert "[autoddp] rank 1 was killed by SIGKILL (signal 9)" in rank[1].err
    assert rank[2] == kernel[2] == Executed()
    kid = Path("/proc", (tmp_path / "kernel" / "kids.txt").read_text().strip())
    assert kid.name.isdecimal()
    deadline = time.monotonic() + 10
    while kid.exists() and (kid / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.05)
