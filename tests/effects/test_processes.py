"""The script's process is rank 0's; what it forks is each rank's, and a line says so."""

import os
import socket

import pytest

from autoddp.effects.children import Children
from autoddp.effects.files import Files
from autoddp.effects.programs import BECOMES, LISTENS, Programs
from tests.effects.outward import on_ranks, raised
from tests.support.cli import fork_cli

pytestmark = pytest.mark.slow


FEATURES = (Files, Programs, Children)


def calls(folder):
    return (folder / "calls").read_text().split()


def test_a_fork_is_every_ranks_and_writes_once(tmp_path):
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


def test_a_fork_is_refused_where_all_must_be_one_processs(tmp_path):
    (tmp_path / "script.py").write_text("import os\nif os.fork() == 0:\n    os._exit(0)\n")
    done = fork_cli("run", "-n", "2", "--strict", "script.py", cwd=tmp_path)
    assert done.rc
    assert "script.py:2: os.fork: every rank starts a child of its own" in done.err


def said(run):
    return [decision.what for decision in run.report.of("programs")]


def test_a_port_is_every_ranks_and_that_is_said(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]

    def script(run):
        with socket.create_server(("127.0.0.1", 0)):  # whichever is free: nothing is said
            before = said(run)
        raised(lambda: run.ended.append(socket.create_server(("127.0.0.1", port))))
        run.group.barrier()
        return before, said(run)

    expected = [], [f"socket.socket.bind: {LISTENS}"]
    assert on_ranks(script, 2, Programs, folder=tmp_path) == [expected] * 2


def test_every_rank_becomes_the_program_that_the_script_becomes_and_that_is_said(tmp_path):
    (tmp_path / "script.py").write_text(
        "import os\nos.execvp('sh', ['sh', '-c', 'echo became >> calls; cat; sleep 1; exit 9'])\n"
    )
    done = fork_cli("run", "-n", "2", "script.py", cwd=tmp_path, stdin="typed\n")
    assert (done.rc, done.out) == (9, "typed\n")
    assert BECOMES in done.err
    assert calls(tmp_path) == ["became"] * 2
