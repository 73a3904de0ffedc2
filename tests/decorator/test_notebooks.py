"""Notebooks that a real kernel executes: the numbers, files and outputs of one process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.support.notebooks import Executed, execute, forks

EARLIER = """
%load_ext autoddp
import logging, os, sys, threading, time, torch, autoddp
from autoddp import distributed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x = torch.randn(40, 6)
loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
losses = []
same = losses
for step in tqdm(range(30)):
    pass
len([t for t in threading.enumerate() if "TMonitor" in repr(t)])
"""
CELL = """
for inputs, labels in tqdm(loader):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    losses.append(loss)
with open("log.txt", "a") as log:
    log.write(f"{loss.item():.9f}\\n")
torch.save(model.state_dict(), "model.pt")
logging.info(f"after {len(losses)} steps")
display(f"{model[0].weight.norm().item():.9f}")
"""
FUNCTION = (
    "@distributed(nproc=2)\ndef train():\n" + CELL.replace("\n", "\n    ") + "\n    return loss"
)
AFTER = """
print(f"{loss.item():.9f} {inputs.sum().item():.9f} {sum(losses).item():.9f}", len(losses))
print(losses is same, type(inputs).__name__, f"{sum(p.norm() for p in model.parameters()):.9f}")
print(open("log.txt").read())
"""


@forks
def test_a_notebook_has_the_numbers_of_one_process(tmp_path):
    cells = EARLIER, FUNCTION, "train()", f"%%autoddp --nproc 2\n{CELL}loss", AFTER
    with ThreadPoolExecutor() as threads:
        one = threads.submit(partial(execute, tmp_path / "one", *cells, AUTODDP_NPROC="1"))
        two = threads.submit(partial(execute, tmp_path / "two", *cells))
    one, two = one.result(), two.result()
    assert [cell.error for cell in two] == [""] * 5, two
    assert [cell.out for cell in two] == [cell.out for cell in one]
    assert [cell.shown for cell in two] == [cell.shown for cell in one]
    assert one[0].shown == ["1"], "the monitor ran before the first fork"
    assert [cell.ours[:1] for cell in one] == [[]] * 5
    for cell, number in ((two[2], 2), (two[3], 4)):
        begin, fetching = cell.ours
        assert begin == "[autoddp] 2 ranks on 1 node, gloo (no GPU here), global view"
        line = 4 if number == 2 else 3
        assert f"DataLoader at In [{number}], line {line}: each rank" in fetching


KEPT = """%%autoddp --nproc 2
net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
adam = torch.optim.Adam(net.parameters(), 0.01)
log = open("log.txt", "w")

def epoch(number):
    for inputs, labels in loader:
        adam.zero_grad()
        loss = nn.functional.cross_entropy(net(inputs), labels)
        loss.backward()
        adam.step()
    log.write(f"{loss.item():.9f}\\n")

epoch(0)
batches = iter(loader)
"""
GOES_ON = """%%autoddp --nproc 2
epoch(1)
f"{torch.rand(()).item():.9f}"
"""
LEFT = """
epoch(2)
log.close()
print(open("log.txt").read())
"""
BEGUN = "print(next(batches)[0].sum())"


@pytest.mark.slow
def test_variables_of_a_cell_are_available_in_the_next(tmp_path):
    """A model, an optimizer, generators, an open file; a loader's pass is over."""
    cells = EARLIER, KEPT, GOES_ON, LEFT, BEGUN
    one = execute(tmp_path / "one", *cells, AUTODDP_NPROC="1")
    two = execute(tmp_path / "two", *cells)
    *errors, begun = [cell.error for cell in two]
    assert errors == [""] * 4, two
    assert begun.startswith("AutoDDPError: a sharded batch is read after the end of its job")
    assert [cell.out for cell in two[:4]] == [cell.out for cell in one[:4]]
    assert [cell.shown for cell in two] == [cell.shown for cell in one]
    assert [len(cell.ours) > 0 for cell in two] == [False, True, True, False, False]


# ---- what goes wrong


@pytest.mark.slow
def test_errors_in_a_cell_are_shown_in_the_notebook(tmp_path):
    """Errors name the lines as shown, and the kernel continues."""
    head = "%%autoddp -n 2 -q\n"
    cells = (
        f"{head}\n1 / 0",
        f"{head}if autoddp.rank():\n    open('a', 'w')\nelse:\n    os.listdir('.')",
        f"{head}!echo once",
        "%%autoddp --ranks 2\n1",
        "%%autoddp --nproc two\n1",
        f"{head}value = (",
        f"{head}value = autoddp.world_size()\nvalue;",
        "value",
    )
    done = execute(tmp_path, "%load_ext autoddp\nimport autoddp, os", *cells)
    errors = [cell.error for cell in done[1:]]
    assert errors[0] == "ZeroDivisionError: division by zero"
    assert errors[1].startswith(
        "Disagreement: rank 1 raised an exception in In [3], but rank 0 returned; the end of its"
    )
    assert (
        "open at In [3], line 3» where rank 0 is in «posix.listdir at In [3], line 5" in errors[1]
    )
    assert errors[2].startswith("BadInput: In [4], line 2: a program that is started by !")
    assert errors[3].startswith("BadInput: %%autoddp --ranks 2: no option '--ranks';")
    assert errors[4] == "BadInput: --nproc is 'two'; it takes a whole number"
    assert errors[5].startswith("SyntaxError: '(' was never closed")
    assert errors[6:] == ["", ""]
    assert (done[7].shown, done[8].shown) == ([], ["2"])


@pytest.mark.slow
def test_a_rank_that_is_killed_is_named_before_the_kernel_ends(tmp_path):
    cell = "%%autoddp -n 2\nif autoddp.rank():\n    signal.raise_signal(9)\ntime.sleep(60)"
    done = execute(tmp_path, "%load_ext autoddp\nimport autoddp, signal, time", cell, "1")
    assert "[autoddp] rank 1 was killed by SIGKILL (signal 9)" in done[1].err
    assert done[2] == Executed()


@pytest.mark.slow
def test_an_interrupt_ends_the_cell_and_leaves_no_rank(tmp_path):
    inside = "open('there', 'w').close()\nfor _ in range(9999):\n    time.sleep(0.01)"
    # the whole group of processes has it, as Jupyter sends it
    own = (
        "def interrupt():\n    while not os.path.exists('there'): time.sleep(0.01)\n"
        "    os.killpg(os.getpgid(0), signal.SIGINT)\n"
        "class Quiet(threading.Thread): pass\nQuiet.__module__ = 'ipykernel'\n"
        "thread = Quiet(target=interrupt, daemon=True)\nthread.start()"
    )
    head = "%load_ext autoddp\nimport os, signal, subprocess, threading, time"
    left = "print(open(f'/proc/self/task/{os.getpid()}/children').read().split())"
    done = execute(tmp_path, head, own, f"%%autoddp -n 2\n{inside}", left)
    assert done[2].error.startswith("KeyboardInterrupt")
    assert done[3].out == "[]\n"
