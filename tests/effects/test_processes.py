"""The script's process is rank 0's; what it forks is each rank's, and a line says so."""

import multiprocessing
import os
import signal
import socket
import sys
import threading
import time

import pytest

from autoddp.effects.files import Files
from autoddp.effects.processes import Processes
from autoddp.effects.programs import Programs
from tests.effects.outward import on_ranks, raised
from tests.support.cli import fork_cli

pytestmark = pytest.mark.slow


def alike(script, nproc, folder):
    """What all ranks return, which is the same."""
    first, *others = on_ranks(script, nproc, Files, Processes, Programs, folder=folder)
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
        said = {decision.what.partition(" ")[0] for decision in run.report.of("processes")}
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
    assert "script.py:2: os.fork starts a child of every rank" in done.err


def test_ways_to_reach_a_process_know_each_ranks_worker(tmp_path):
    """A multiprocessing child is each rank's own, all else is rank 0's."""

    def script(run):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(100,))
        child.start()
        os.setpgid(child.pid, child.pid)
        asked = os.getpgid(child.pid) == child.pid
        os.killpg(child.pid, signal.SIGTERM)
        child.join()
        heard = []
        before = signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
        if run.world.rank:
            time.sleep(0.3)  # rank 0 waits for all
        os.kill(os.getpid(), signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, before)
        missing = raised(lambda: os.kill(2**22 + 1, 0))[0]
        return asked, child.exitcode, os.getpgid(0), os.getsid(0), missing

    asked, code, *_, missing = alike(script, 2, tmp_path)
    assert (asked, code, missing) == (True, -signal.SIGTERM, "ProcessLookupError")


def test_a_port_that_the_script_listens_at_is_rank_0s(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as other:
        ports = [one.getsockname()[1], other.getsockname()[1]]

    def script(run):
        here, started = run.world.rank == 0, []

        def serve():
            started.append(socket.create_server(("127.0.0.1", ports[1])))

        with socket.create_server(("127.0.0.1", ports[0])) as server:
            thread = threading.Thread(target=serve)
            thread.start()
            thread.join()
            bound = [each.getsockname()[1] for each in (server, *started)]
            started[0].close()
            return bound == ports if here else not set(bound) & {*ports, 0}

    assert alike(script, 3, tmp_path) is True


def test_the_number_of_the_process_costs_next_to_nothing(tmp_path):
    def script(run):
        start = time.perf_counter()
        for _ in range(10_000):
            os.getpid()
        return (time.perf_counter() - start) / 10_000

    assert max(on_ranks(script, 2, Processes, folder=tmp_path)) < 20e-6


def test_a_library_sees_its_own_process(tmp_path):
    source = "import os\ndef number():\n    return os.getpid()\n"

    def script(run):
        library = {}
        exec(compile(source, "/usr/lib/python3/site-packages/library.py", "exec"), library)
        return library["number"]()

    first, second = on_ranks(script, 2, Processes, folder=tmp_path)
    assert first != second


@pytest.mark.parametrize("ending", ["exit 9", "kill -KILL $$"], ids=["code", "signal"])
def test_the_job_ends_as_the_program_that_the_script_becomes(ending, tmp_path):
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
    assert calls(tmp_path) == ["became"]


def test_what_cannot_be_executed_is_an_error_on_all(tmp_path):
    def script(run):
        return (
            raised(lambda: os.execv("/no/such/program", ["x"])),
            raised(lambda: os.execv(sys.executable + "/x", ["x"])),
        )

    assert alike(script, 2, tmp_path) == script(None)
