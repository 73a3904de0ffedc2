"""Ranks end together, with one exit code and one report of a failure; signals reach all ranks."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import environ, fork_cli
from tests.support.warm import shared

pytestmark = pytest.mark.slow

RANK = "import autoddp, os, sys, time, signal\nrank = autoddp.rank()\n"


@pytest.fixture
def script(tmp_path):
    """Write a script that uses its rank; return its path."""

    def write(source: str) -> Path:
        path = tmp_path / "job.py"
        path.write_text(RANK + source)
        return path

    return write


def alive(pid: int) -> bool:
    """Whether a process runs and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def gone(pids, seconds=5.0):
    """Whether all of them end in time."""
    deadline = time.monotonic() + seconds
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(alive(pid) for pid in pids)


def children(pid: int) -> list[int]:
    """The children of a process; in the script, all ranks have rank 0's process id."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Started:
    """A job of 2 ranks that runs until it gets a signal, in its own process group."""

    def __init__(self, path: Path, *options: str, nproc: int = 2, fresh: bool = False) -> None:
        words = ["autoddp", "run", "-n", str(nproc), *options, str(path)]
        logs = [path.parent / "out", path.parent / "err"]
        self.process: Any
        if fresh:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *words],
                env=environ(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        else:
            self.process = shared().start(*words, folder=Path.cwd(), logs=logs, env=environ())
        deadline = time.monotonic() + 60
        while not (path.parent / "arrived").exists():
            assert time.monotonic() < deadline, "the ranks do not start"
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.02)
        self.ranks = sorted(children(self.process.pid))
        assert len(self.ranks) == nproc

    def end(self, timeout: float = 20) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        try:
            out, err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise
        assert gone(self.ranks), "a rank outlives the command"
        return self.process.returncode, out, err


# rank 0 does it when all are here
ARRIVED = "os.mkdir(os.path.join(os.path.dirname(__file__), 'arrived'))\n"
FOREVER = "while True: time.sleep(0.01)\n"


# ---- how it ends


def test_a_rank_that_fails_alone_is_named_with_the_end_of_its_log(script):
    path = script("print('x' * rank)\nif rank: raise ValueError('only me')\ntime.sleep(60)")
    done = fork_cli("run", "-n", 2, path)
    assert done.rc == 1
    (line,) = done.ours[1:]
    match = re.fullmatch(
        r"\[autoddp\] rank 1 ended with exit code 1; the end of its log (.*):", line
    )
    assert match, line
    assert done.err.endswith("ValueError: only me\n")
    assert "x\nTraceback" in done.err
    log = Path(match[1])
    assert oct(log.parent.stat().st_mode)[-3:] == "700"
    assert log.read_text().endswith("ValueError: only me\n")
    log.unlink()
    log.parent.rmdir()


def test_only_rank_0_writes_to_the_terminal(script, tmp_path):
    path = script(
        "print('out', rank, flush=True)\nprint('err', rank, file=sys.stderr)\nos.system('echo sub')"
    )
    done = fork_cli("run", "-n", 2, "--log-dir", tmp_path / "logs", path)
    assert (done.out, done.theirs) == ("out 0\nsub\n", "err 0\n")
    assert (tmp_path / "logs" / "rank1.log").read_text() == "out 1\nerr 1\n"  # the program ran once


def test_nothing_is_left_after_success(script, tmp_path):
    done = fork_cli("run", "-n", 2, script("print(rank)"), env={"TMPDIR": str(tmp_path)})
    assert done.rc == 0
    assert [path.name for path in tmp_path.iterdir()] == ["job.py"]


def test_ranks_share_the_cores(script):
    path = script("import torch\nprint(torch.get_num_threads())")
    assert fork_cli("run", "-n", 2, path, env={"OMP_NUM_THREADS": "3"}).out == "3\n"
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    assert fork_cli("run", "-n", 2, path, env={"OMP_NUM_THREADS": ""}).out == f"{share}\n"


def test_python_generators_start_equal(script, tmp_path):
    path = script("import random, torch\nprint(random.random(), torch.rand(1).item())")
    done = fork_cli("run", "-n", 2, "--log-dir", tmp_path / "logs", path)
    assert done.out == (tmp_path / "logs" / "rank1.log").read_text()


# ---- signals


def test_all_ranks_see_rank_0s_terminal(script):
    """A real terminal: colours, line buffering, input with a prompt, and Ctrl-C."""
    path = script(
        "print(sys.stdin.isatty(), sys.stdout.isatty(), os.isatty(2))\n"
        "print('got', input('say: '))\n"
        "print('ready')\n" + FOREVER
    )
    parent, child = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "autoddp", "run", "-q", "-n", "2", str(path)],
        env=environ(),
        stdin=child,
        stdout=child,
        stderr=child,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(child)
    seen = b""
    try:
        for until, answer in ((b"say: ", b"it\n"), (b"ready", b"\x03"), (b"Interrupt\r\n", b"")):
            while until not in seen:
                assert select.select([parent], [], [], 30)[0], seen
                seen += os.read(parent, 1000)
            time.sleep(0.2)
            os.write(parent, answer)
        assert process.wait(20) == 130
    finally:
        process.kill()
        process.wait()
        os.close(parent)
    lines = seen.decode().replace("\r", "").split("\n")
    assert lines[0] == "True True True"
    assert lines[2:4] == ["got it", "ready"]
    assert seen.count(b"Traceback") == 1


@pytest.mark.parametrize("everyone", [True, False], ids=["group", "launcher"])
def test_a_signal_handler_of_the_script_runs(script, everyone):
    path = script(
        "def leave(number, frame):\n"
        "    os.write(1, b'saved\\n')\n"
        "    time.sleep(0.5)\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\n" + ARRIVED + FOREVER
    )
    job = Started(path)
    (os.killpg if everyone else os.kill)(job.process.pid, signal.SIGTERM)
    code, out, _ = job.end()
    assert (code, out) == (0, "saved\n")


def test_a_rank_that_hangs_after_a_signal_does_not_keep_the_others(script):
    path = script(
        "signal.signal(signal.SIGTERM, lambda *_: rank or sys.exit(0))\n" + ARRIVED + FOREVER
    )
    job = Started(path)
    os.kill(job.process.pid, signal.SIGTERM)
    assert job.end(timeout=30)[0] == 0


def test_ignored_signals_stay_ignored(script):
    """Signals ignored as under nohup."""
    path = script(ARRIVED + "time.sleep(1)\nprint(signal.getsignal(signal.SIGHUP))")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        job = Started(path, fresh=True)
    finally:
        signal.signal(signal.SIGHUP, before)
    os.killpg(job.process.pid, signal.SIGHUP)
    assert job.end()[:2] == (0, "1\n")
