"""The script's signal handlers run at the same point of the program on all ranks.

Real jobs and real signals. Each rank prints what it holds when a handler has run: rank 0 to the
terminal, the others to their logs; the lines must be the same.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.cli import start_cli

pytestmark = pytest.mark.slow

TRAIN = """\
import os, signal, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), 0.001)
x, y = torch.randn(16, 4), torch.randn(16, 1)
loader = DataLoader(TensorDataset(x, y), batch_size=8, num_workers=WORKERS)
step = 0


def tell(what):
    print(what, step, net.weight.sum().item(), flush=True)


def save(number=None, frame=None):
    torch.save({"net": net.state_dict(), "step": step}, "ckpt.pt")
    tell("saved")


def train(until=1 << 40):
    global step
    while step < until:
        for a, b in loader:
            loss = ((net(a) - b) ** 2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1


train(4)
"""


class Job:
    """`autoddp run` of a training script, with methods to wait for lines and to send signals."""

    def __init__(self, folder: Path, source: str, nproc: int = 2, workers: int = 0) -> None:
        self.folder, self.nproc, self.seen = folder, nproc, ""
        (folder / "train.py").write_text(TRAIN.replace("WORKERS", str(workers)) + source)
        words = f"run -q -n {nproc} --log-dir logs train.py".split()
        self.process = start_cli(*words, folder=folder, logs=folder / "seen")
        JOBS.append(self)

    def wait_for(self, text: str, times: int = 1) -> None:
        """Wait until rank 0 has printed a text a number of times."""
        self.seen = self.process.until(text, times)

    def send(self, number: int, rank: int | None = None) -> None:
        """Send a signal to the launcher, or to one rank."""
        os.kill(self.process.pid if rank is None else self.ranks[rank], number)

    @property
    def ranks(self) -> list[int]:
        """The process ids of the ranks."""
        pid = self.process.pid
        return sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))

    def end(self, timeout: float = 60) -> tuple[int, list[str]]:
        """The exit code, and the lines of every rank."""
        self.seen = "".join(self.process.communicate(timeout))
        logs = [
            (self.folder / "logs" / f"rank{rank}.log").read_text() for rank in range(1, self.nproc)
        ]
        said = [
            [line for line in text.splitlines() if line[:5] in KINDS] for text in (self.seen, *logs)
        ]
        assert all(lines == said[0] for lines in said), (said, self.seen, logs)
        return self.process.wait(), said[0]


@pytest.fixture(autouse=True)
def _none_is_left():
    """End jobs that a failing test has left."""
    JOBS.clear()
    yield
    for job in JOBS:
        if job.process.poll() is None:
            os.killpg(job.process.pid, signal.SIGKILL)


JOBS: list[Job] = []
KINDS = ("saved", "went ", "caugh", "ended")


def checkpoint(folder: Path) -> int:
    """The step in a line."""
    import torch

    return int(torch.load(folder / "ckpt.pt")["step"])


@pytest.mark.parametrize(("nproc", "workers"), [(3, 0), (2, 1)])
def test_an_interrupt_during_training_is_caught_at_the_same_step(tmp_path, nproc, workers):
    source = (
        "print('ready', flush=True)\n"
        "try:\n    train()\nexcept KeyboardInterrupt:\n    save()\n    raise\n"
    )
    job = Job(tmp_path, source, nproc=nproc, workers=workers)
    job.wait_for("ready")
    time.sleep(0.3)
    job.send(signal.SIGINT)
    code, (line,) = job.end()
    assert code == 130, job.seen
    assert "KeyboardInterrupt" in job.seen
    assert line.split()[:2] == ["saved", str(checkpoint(tmp_path))]


def test_handlers_run_once_per_signal_and_one_that_exits_ends_the_job(
    tmp_path,
):
    """SIGUSR1 to the launcher, to rank 1 or rank 0 alone; SIGUSR2; then SIGTERM: exit code 0."""
    source = (
        "signal.signal(signal.SIGUSR1, save)\n"
        "signal.signal(signal.SIGUSR2, lambda *_: tell('went on'))\n"
        "def leave(number, frame):\n    save()\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "assert signal.getsignal(signal.SIGUSR1) is save\n"
        "print('ready', flush=True)\ntrain()\n"
    )
    job = Job(tmp_path, source)
    job.wait_for("ready")
    for count, rank in enumerate((None, None, 1, 0), 1):
        job.send(signal.SIGUSR1, rank)
        job.wait_for("saved", count)
        time.sleep(1.2)  # until then one that rank 0 had not got by itself may be on its way
    job.send(signal.SIGUSR2)
    job.wait_for("went on")
    job.send(signal.SIGTERM)
    code, lines = job.end()
    assert code == 0, job.seen
    assert [line.split()[0] for line in lines] == ["saved"] * 4 + ["went"] + ["saved"]
    assert lines[-1].split()[1] == str(checkpoint(tmp_path))


def test_a_rank_that_receives_a_signal_late_receives_the_next_one_too(tmp_path):
    source = "signal.signal(signal.SIGUSR1, save)\nprint('ready', flush=True)\ntrain()\n"
    job = Job(tmp_path, source)
    job.wait_for("ready")
    first = job.ranks[0]
    os.kill(first, signal.SIGSTOP)  # as on a machine that is too busy to run it
    job.send(signal.SIGUSR1)
    time.sleep(0.5)
    os.kill(first, signal.SIGCONT)
    job.wait_for("saved")
    time.sleep(1.2)
    job.send(signal.SIGUSR1)
    job.wait_for("saved", 2)
    job.send(signal.SIGTERM)
    assert job.end()[1], job.seen


def test_without_steps_handlers_run_within_about_a_second(tmp_path):
    """Handlers also run during a long sleep, and for a timer of the script."""
    source = (
        "def late(number, frame):\n    raise TimeoutError('late')\n"
        "signal.signal(signal.SIGALRM, late)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.3)\n"
        "try:\n    train()\nexcept TimeoutError:\n    tell('caught')\n"
        "signal.signal(signal.SIGUSR1, save)\n"
        "print('ready', flush=True)\n"
        "began = time.monotonic()\n"
        "try:\n    time.sleep(100)\nexcept KeyboardInterrupt:\n    tell('caught')\n"
        "assert time.monotonic() - began < 30\n"
        "train(step + 2)\n"
        "signal.raise_signal(signal.SIGUSR1)\n"
        "train(step + 2)\n"
        "tell('ended')\n"
    )
    job = Job(tmp_path, source)
    job.wait_for("ready")
    time.sleep(0.2)
    began = time.monotonic()
    job.send(signal.SIGUSR1)
    job.wait_for("saved")
    assert time.monotonic() - began < 10
    job.send(signal.SIGINT)
    code, lines = job.end()
    assert code == 0, job.seen
    assert [line.split()[0] for line in lines] == ["caught", "saved", "caught", "saved", "ended"]
