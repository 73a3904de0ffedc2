"""Ranks end together, with one exit code and one account of what went wrong; signals reach all."""

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

from tests.support.cli import environ, fork_cli, run_cli
from tests.support.warm import shared

pytestmark = pytest.mark.slow

RANK = "import autoddp, os, sys, time, signal\nrank = autoddp.rank()\n"


@pytest.fixture
def script(tmp_path):
    """Writes a script that knows its rank; returns its path."""

    def write(source: str) -> Path:
        path = tmp_path / "job.py"
        path.write_text(RANK + source)
        return path

    return write


def alive(pid: int) -> bool:
    """Whether a process runs: one that nobody has waited for yet does not."""
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
    """The processes that one has started; to the script, all ranks have rank 0's number."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Started:
    """A job of 2 ranks that runs until it is told to end, in a group of its own."""

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


def test_all_ranks_raise_and_one_traceback_is_shown(script):
    done = fork_cli("run", "-n", 3, script("raise ValueError('why')"))
    assert done.rc == 1
    assert done.theirs.count("Traceback") == 1
    assert done.theirs.endswith("ValueError: why\n")
    assert len(done.ours) == 1


def test_rank_0_is_shown_though_it_fails_last(script):
    done = fork_cli("run", "-n", 2, script("time.sleep(1 - rank)\nraise ValueError(rank)"))
    assert done.rc == 1
    assert done.theirs.endswith("ValueError: 0\n")
    assert len(done.ours) == 1


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


def test_who_waits_for_a_rank_that_has_ended_learns_it(script):
    done = fork_cli("run", "-n", 2, script("if rank: sys.exit(0)\nos.mkdir('never')"))
    assert done.rc == 1
    assert "RankEnded: rank 1 has ended with exit code 0, and this rank waits for it" in done.theirs


@pytest.mark.parametrize(("rank", "name"), [(0, "SIGKILL"), (1, "SIGSEGV"), (1, "SIGKILL")])
def test_death_by_a_signal_names_the_rank(script, rank, name):
    source = f"if rank == {rank}: signal.raise_signal(signal.{name})\ntime.sleep(60)"
    done = fork_cli("run", "-n", 2, script(source), env={"PYTHONFAULTHANDLER": ""})
    number = getattr(signal, name)
    assert done.rc == 128 + number
    assert f"[autoddp] rank {rank} was killed by {name} (signal {number})" in done.err


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


@pytest.mark.parametrize("rank", [0, 1])
def test_nothing_is_left_of_what_a_killed_rank_was_about_to_write(script, tmp_path, rank):
    (tmp_path / "tmp").mkdir()
    path = script(
        "import torch\n"
        "with open('log', 'w') as log: log.write('a')\n"
        "assert open('log').read() == 'a'\n"  # on rank 1 from its scratch
        "class Deadly:\n"
        "    def __reduce__(self):\n"
        f"        if rank != {rank}: time.sleep(60)\n"
        "        signal.raise_signal(signal.SIGKILL)\n"
        "torch.save(Deadly(), 'last.pt')\n"
    )
    done = fork_cli("run", "-n", 2, path, env={"TMPDIR": str(tmp_path / "tmp")}, cwd=tmp_path)
    assert done.rc == 128 + 9, done.err
    assert sorted(os.listdir(tmp_path)) == ["job.py", "log", "tmp"]
    assert list((tmp_path / "tmp").rglob("*")) == []  # not a log either: it is empty


def test_the_launcher_never_touches_cuda(script, tmp_path):
    path = script("import torch\nassert not torch.cuda.is_initialized()\n")
    check = tmp_path / "check.py"
    check.write_text(
        "import ctypes, sys\n"
        "from autoddp.cli import command\n"
        f"assert command(['run', '-n', '2', {str(path)!r}]) == 0\n"
        "import torch\n"
        "print(torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork())\n"
        "maps = open('/proc/self/maps').read()\n"
        "print('libcuda.so' in maps, sys.stdin is sys.__stdin__)\n"
    )
    done = subprocess.run(
        [sys.executable, check], env=environ(), capture_output=True, text=True, timeout=240
    )
    assert done.stdout == "False False\nFalse True\n", done.stderr


def test_ranks_share_the_cores(script):
    path = script("import torch\nprint(torch.get_num_threads())")
    assert fork_cli("run", "-n", 2, path, env={"OMP_NUM_THREADS": "3"}).out == "3\n"
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    assert fork_cli("run", "-n", 2, path, env={"OMP_NUM_THREADS": ""}).out == f"{share}\n"


def test_python_generators_start_equal(script, tmp_path):
    path = script("import random, torch\nprint(random.random(), torch.rand(1).item())")
    done = fork_cli("run", "-n", 2, "--log-dir", tmp_path / "logs", path)
    assert done.out == (tmp_path / "logs" / "rank1.log").read_text()


def test_garbage_is_searched_for_in_what_the_script_makes_alone(script):
    """What the launcher imported is left out, else each search in a rank would copy its pages.

    In a process of its own: that of which the others are forks leaves out what it has, too.
    """
    done = run_cli(
        "run",
        "-q",
        "-n",
        "2",
        str(
            script(
                "import gc, weakref\n"
                "class Node: pass\n"
                "node = Node()\n"
                "node.me, seen = node, weakref.ref(node)\n"
                "del node\n"
                "gc.collect()\n"
                "print(gc.isenabled(), gc.get_freeze_count() > 10_000, seen())\n"
            )
        ),
    )
    assert (done.rc, done.out) == (0, "True True None\n"), done.err


# ---- signals


@pytest.mark.parametrize("everyone", [True, False], ids=["group", "launcher"])
def test_interrupt_reaches_every_rank_once(script, everyone):
    path = script(
        ARRIVED + "try:\n    while True: time.sleep(0.01)\n"
        "except KeyboardInterrupt:\n    print('caught', flush=True)\n    time.sleep(1)\n    raise\n"
    )
    job = Started(path)
    if everyone:
        os.killpg(job.process.pid, signal.SIGINT)
    else:
        os.kill(job.process.pid, signal.SIGINT)
    code, out, err = job.end()
    assert code == 130
    assert out == "caught\n"
    assert err.count("Traceback") == 1
    assert err.endswith("KeyboardInterrupt\n")


def test_a_terminal_is_rank_0s(script):
    """A real one: colours, line by line, input with a prompt, and Ctrl-C."""
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
def test_terminate_ends_every_rank(script, everyone):
    job = Started(script(ARRIVED + FOREVER))
    (os.killpg if everyone else os.kill)(job.process.pid, signal.SIGTERM)
    code, out, err = job.end()
    assert (code, out) == (143, "")
    assert "Traceback" not in err


@pytest.mark.parametrize("everyone", [True, False], ids=["group", "launcher"])
def test_a_handler_of_the_script_decides(script, everyone):
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


def test_a_script_may_outlive_a_signal(script):
    path = script(
        "signal.signal(signal.SIGUSR1, lambda *_: None)\nsignal.signal(signal.SIGINT, "
        "lambda *_: os.write(1, b'no\\n'))\n" + ARRIVED + "end = time.time() + 2\n"
        "while time.time() < end: time.sleep(0.01)\nprint('end')"
    )
    job = Started(path)
    os.kill(job.process.pid, signal.SIGUSR1)
    os.kill(job.process.pid, signal.SIGINT)
    assert job.end()[:2] == (0, "no\nend\n")


@pytest.mark.parametrize("everyone", [True, False], ids=["group", "launcher"])
def test_a_signal_is_acted_on_once(script, everyone):
    path = script(
        "had = []\nsignal.signal(signal.SIGUSR1, lambda *_: had.append(1))\n"
        + ARRIVED
        + "end = time.time() + 3\n"
        "while time.time() < end: os.path.exists('x'), time.sleep(0.01)\n"
        "print(len(had))"
    )
    job = Started(path)
    (os.killpg if everyone else os.kill)(job.process.pid, signal.SIGUSR1)
    assert job.end()[:2] == (0, "1\n")


def test_a_rank_that_hangs_after_a_signal_does_not_keep_the_others(script, monkeypatch):
    path = script(
        "signal.signal(signal.SIGTERM, lambda *_: rank or sys.exit(0))\n" + ARRIVED + FOREVER
    )
    job = Started(path)
    os.kill(job.process.pid, signal.SIGTERM)
    assert job.end(timeout=30)[0] == 0


def test_nothing_outlives_a_killed_launcher(script):
    path = script("signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + ARRIVED + FOREVER)
    job = Started(path)
    job.process.kill()
    job.process.communicate(timeout=10)
    assert gone(job.ranks)


def test_what_was_ignored_stays_ignored(script):
    """As under nohup."""
    path = script(ARRIVED + "time.sleep(1)\nprint(signal.getsignal(signal.SIGHUP))")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        job = Started(path, fresh=True)
    finally:
        signal.signal(signal.SIGHUP, before)
    os.killpg(job.process.pid, signal.SIGHUP)
    assert job.end()[:2] == (0, "1\n")
