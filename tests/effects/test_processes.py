"""The script's process is rank 0's; what it forks is each rank's, and a line says so."""

import os
import socket
import time

import pytest

from autoddp.effects.children import Children
from autoddp.effects.files import Files
from autoddp.effects.programs import BECOMES, LISTENS, Programs
from tests.effects.outward import on_ranks, raised
from tests.support.cli import fork_cli

pytestmark = pytest.mark.slow


FEATURES = (Files, Programs, Children)


def alike(script, nproc, folder):
    """What all ranks return, which is the same."""
    first, *others = on_ranks(script, nproc, *FEATURES, folder=folder)
    assert others == [first] * (nproc - 1)
    return first


def note(word):
    with open("calls", "a") as calls:
        calls.write(f"{word}\n")


def calls(folder):
    return (folder / "calls").read_text().split()


@pytest.mark.parametrize("nproc", [2, 3])
def test_a_fork_is_every_ranks_and_writes_once(nproc, tmp_path):
    def script(run):
        me = os.getpid()
        child = os.fork()
        if child == 0:
            note(os.getpid() != me)
            os._exit(5)
        pid, status = os.waitpid(child, 0)
        spawned = os.spawnlp(os.P_WAIT, "sh", "sh", "-c", "exit 4")
        started = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 3"], os.environ)
        codes = os.waitstatus_to_exitcode(status), spawned, os.waitpid(started, 0)[1] >> 8
        said = {decision.what.partition(":")[0] for decision in run.report.of("programs")}
        return me, os.getppid(), pid == child, codes, sorted(said), calls_here()

    *_, same, codes, said, found = alike(script, nproc, tmp_path)
    assert (same, codes, found) == (True, (5, 4, 3), ["True"])
    assert said == ["os.fork", "os.posix_spawn"]
    assert calls(tmp_path) == ["True"]


def calls_here():
    with open("calls") as calls:
        return calls.read().split()


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
        free = socket.create_server(("127.0.0.1", 0))  # whichever is free
        before = said(run)
        with free:
            run.group.barrier()
            return before, raised(lambda: taken.append(bind(port)))[0], said(run)

    taken = []

    def bind(port):
        server = socket.socket()
        server.bind(("127.0.0.1", port))
        return server

    before, *found = zip(*on_ranks(script, 2, Programs, folder=tmp_path), strict=True)
    assert before == ([], [])
    assert found == [("", "OSError"), ([f"socket.socket.bind: {LISTENS}"],) * 2] or found == [
        ("OSError", ""),
        ([f"socket.socket.bind: {LISTENS}"],) * 2,
    ]


def test_the_number_of_the_process_costs_next_to_nothing(tmp_path):
    def script(run):
        start = time.perf_counter()
        for _ in range(10_000):
            os.getpid()
        return (time.perf_counter() - start) / 10_000

    assert max(on_ranks(script, 2, Programs, folder=tmp_path)) < 20e-6


def test_a_library_sees_its_own_process(tmp_path):
    source = "import os\ndef number():\n    return os.getpid()\n"

    def script(run):
        library = {}
        exec(compile(source, "/usr/lib/python3/site-packages/library.py", "exec"), library)
        return library["number"]()

    first, second = on_ranks(script, 2, Programs, folder=tmp_path)
    assert first != second


@pytest.mark.parametrize("ending", ["exit 9", "kill -KILL $$"], ids=["code", "signal"])
def test_every_rank_becomes_the_program_that_the_script_becomes_and_that_is_said(ending, tmp_path):
    (tmp_path / "script.py").write_text(
        "import atexit, os, sys\n"
        "atexit.register(print, 'never')\n"
        "try:\n"
        "    os.execvp('no-such-program', ['x'])\n"
        "except FileNotFoundError:\n"
        "    pass\n"
        "try:\n"
        "    os.execvp('sh', ['sh', '-c', "
        f"'echo became >> calls; cat; sleep 1; {ending}'])\n"
        "finally:\n"
        "    print('never')\n"
    )
    done = fork_cli("run", "-n", "2", "script.py", cwd=tmp_path, stdin="typed\n")
    assert (done.rc, done.out) == ((9 if "exit" in ending else 137), "typed\n")
    assert f"script.py:8: os.execve: {BECOMES}" in done.err or f"os.execv: {BECOMES}" in done.err
    assert calls(tmp_path) == ["became"] * 2
