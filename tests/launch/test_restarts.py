"""A job that is killed at any step and restarted ends like an undisturbed one."""

from __future__ import annotations

import os
import random

import pytest

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("AUTODDP_KILLS", "3"))  # at random steps of one job
STEPS = 10 + 2 * KILLS

SCRIPT = """
import os
import random
import signal
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

import autoddp

torch.manual_seed(0)
x = torch.randn(4 * STEPS, 3, dtype=torch.float64)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)
model = torch.nn.Sequential(\
torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1)).double()
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
start, kills = 0, [int(step) for step in sys.argv[1:]]
if os.path.exists("last.pt"):
    state = torch.load("last.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    start = state["step"]
    print("resumed at", start)
for step, (a, b) in enumerate(loader):
    if step < start:
        continue
    if step == start > 0:
        torch.set_rng_state(state["rng"])  # a loader draws when it starts
    loss = torch.nn.functional.mse_loss(model(a), b)
    optimizer.zero_grad()
    loss.backward()
    if step in kills and not os.path.exists(f"killed{step}"):
        open(f"killed{step}", "w").close()
        if autoddp.rank() == step % max(autoddp.world_size(), 1):
            signal.raise_signal(signal.SIGKILL)
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
    torch.save(state | {"rng": torch.get_rng_state()}, "last.pt")
torch.save(model.state_dict(), "final.pt")
print("through", loss.item())
""".replace("STEPS", str(STEPS))


@pytest.fixture
def job(warm, tmp_path):
    path = tmp_path / "job.py"
    path.write_text(SCRIPT)
    return lambda name, *command: warm.run(
        *command, folder=tmp_path / name, timeout=60 + 2 * KILLS
    ), str(path)


@pytest.mark.parametrize("nproc", [1, 2])
def test_restarts_give_the_result_of_an_undisturbed_job(job, nproc):
    run, path = job
    kills = [str(step) for step in sorted(random.Random(nproc).sample(range(STEPS), KILLS))]
    want = run("want", "python", path)
    got = run("got", "autoddp", "run", "-n", str(nproc), "--max-restarts", str(KILLS), path, *kills)
    assert got.code == 0, got.err
    assert not got.left
    assert [line for line in got.out.splitlines() if line.startswith("resumed")] == [
        f"resumed at {step}" for step in kills if step != "0"
    ]
    killed = [f"rank {int(step) % nproc} was killed by SIGKILL (signal 9)" for step in kills]
    assert [
        line.partition("] ")[2].partition(";")[0]
        for line in got.err.splitlines()
        if " was killed " in line
    ] == killed
    weights(want, got)


def weights(want, got):
    import torch

    a, b = (torch.load(run.folder / "final.pt") for run in (want, got))
    for name in a:
        assert torch.allclose(a[name], b[name], rtol=1e-12, atol=1e-12), name


def test_a_job_that_always_fails_ends_with_its_exit_code(job, tmp_path):
    run, path = job
    (tmp_path / "job.py").write_text("import sys\nprint('again')\nsys.exit(3)")
    done = run("got", "autoddp", "run", "-n", "2", "--max-restarts", "2", path)
    assert (done.code, done.out) == (3, "again\n" * 3)
    assert done.err.count("ended with exit code 3\n[autoddp] restarting the job") == 2


def test_a_signal_does_not_restart_the_job(job, tmp_path):
    run, path = job
    (tmp_path / "job.py").write_text(
        "import os, signal, time\n"
        "print('once', flush=True)\n"
        "if os.path.exists('there'): raise SystemExit('again')\n"
        "open('there', 'w').close()\n"
        "os.kill(os.getppid(), signal.SIGTERM)\n"
        "time.sleep(60)\n"
    )
    done = run("got", "autoddp", "run", "-n", "2", "--max-restarts", "2", path)
    assert (done.code, done.out) == (143, "once\n")
