"""The script gets rank 0's process id; forks run on each rank, and a line reports it."""

import os

import pytest

from autoddp.effects.children import Children
from autoddp.effects.files import Files
from autoddp.effects.programs import Programs
from tests.effects.outward import on_ranks
from tests.support.cli import fork_cli

pytestmark = pytest.mark.slow


FEATURES = (Files, Programs, Children)


def calls(folder):
    return (folder / "calls").read_text().split()


def test_a_fork_runs_on_every_rank_and_writes_once(tmp_path):
    def script(run):
        me = os.getpid()
        child = os.fork()
        if child == 0:
            with open("calls", "a") as file:
                file.write(f"{os.getpid() != me}\n")
            os._exit(5)
        pid, status = os.waitpid(child, 0)
        started = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 3"], os.environ)
        codes = os.waitstatus_to_exitcode(status), os.waitpid(started, 0)[1] >> 8
        forks = sorted(what.partition(":")[0] for what in said(run))
        with open("calls") as file:
            return me, os.getppid(), pid == child, codes, forks, file.read()

    zero, one, two = on_ranks(script, 3, *FEATURES, folder=tmp_path)
    assert zero[:3] == one[:3] == two[:3]
    assert zero[2:] == (True, (5, 3), ["os.fork", "os.posix_spawn"], "True\n")
    assert calls(tmp_path) == ["True"]


def test_strict_refuses_a_fork(tmp_path):
    (tmp_path / "script.py").write_text("import os\nif os.fork() == 0:\n    os._exit(0)\n")
    done = fork_cli("run", "-n", "2", "--strict", "script.py", cwd=tmp_path)
    assert done.rc
    assert "script.py:2: os.fork: every rank does this" in done.err


def said(run):
    return [decision.what for decision in run.report.of("programs")]
