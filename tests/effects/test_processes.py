"""Processes that the script forks, waits for and signals are one for all ranks."""

import multiprocessing
import os
import resource
import signal
import socket
import sys
import threading
import time

import pytest

from autoddp.comm.place import HERE
from autoddp.comm.world import give
from autoddp.effects.processes import Processes
from autoddp.effects.programs import Programs
from tests.effects.outward import on_ranks, raised, trial
from tests.support.cli import fork_cli

pytestmark = pytest.mark.slow


def alike(script, nproc, folder):
    """What all ranks return, which is the same."""
    first, *others = on_ranks(script, nproc, Processes, Programs, folder=folder)
    assert others == [first] * (nproc - 1)
    return first


def note(word):
    with open("calls", "a") as calls:
        calls.write(f"{word}\n")


def calls(folder):
    return (folder / "calls").read_text().split()


@pytest.mark.parametrize("nproc", [2, 3])
def test_a_fork_is_one_for_all_ranks(nproc, tmp_path):
    def script(run):
        me = os.getpid()
        give(HERE.given, "OURS", "1")
        assert os.system("exit 7") == 7 << 8
        child = os.fork()
        if child == 0:
            time.sleep(0.2)  # what rank 0 tells later is not what it told first
            note(os.getppid() == me and os.getpid() != me and "OURS" not in os.environ)
            os.system("echo program$OURS >> calls")
            os.execv("/bin/sh", ["sh", "-c", "echo became$OURS >> calls; exit 5"])
        pid, status, usage = os.wait4(child, 0)
        said = [d for d in run.report.of("processes") if "os.fork forks rank 0" in d.what]
        how = pid == child, os.waitstatus_to_exitcode(status), type(usage), len(said)
        return me, child, *how, os.getppid()

    *_, same, code, usage, said, _ = alike(script, nproc, tmp_path)
    assert same
    assert said == 1, "a child's answer by shared memory is silently rank 0's else"
    assert (code, usage) == (5, resource.struct_rusage)
    assert calls(tmp_path) == ["True", "program", "became"]


def test_children_are_waited_for_and_signalled_once(tmp_path):
    def script(run):
        def start(code):
            return os.spawnlp(os.P_NOWAIT, "sh", "sh", "-c", f"echo x >> calls; {code}")

        sleeping = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "100")
        os.killpg(os.getpgid(sleeping), 0)
        os.kill(sleeping, signal.SIGTERM)
        ended = os.waitpid(sleeping, 0)
        seen = [
            (ended[0] == sleeping, os.WTERMSIG(ended[1])),
            os.waitid(os.P_PID, start("exit 3"), os.WEXITED).si_status,
            os.wait3(0)[1] if start("exit 2") else None,
            os.spawnlp(os.P_WAIT, "sh", "sh", "-c", "exit 4"),
        ]
        failures = raised(lambda: os.waitpid(-1, os.WNOHANG)), raised(lambda: os.kill(sleeping, 0))
        return seen, failures

    seen, failures = alike(script, 2, tmp_path)
    assert seen == [(True, signal.SIGTERM), 3, 2 << 8, 4]
    assert [kind for kind, _ in failures] == ["ChildProcessError", "ProcessLookupError"]
    assert calls(tmp_path) == ["x"] * 2


def test_ways_to_wait_know_each_ranks_worker(tmp_path):
    """A multiprocessing child is each rank's own, however the wait for it is written."""
    ways = [
        lambda pid: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT).si_pid,
        lambda pid: os.waitid(os.P_PGID, pid, os.WEXITED | os.WNOWAIT).si_pid,
        lambda pid: os.waitpid(-pid, 0)[0],
        lambda pid: os.wait4(pid=pid, options=0)[0],
        lambda pid: os.wait4(pid, 0)[0],
    ]

    def script(run):
        seen = []
        for way in ways:
            leads = multiprocessing.get_context("fork").Barrier(2)
            child = multiprocessing.get_context("fork").Process(target=lead, args=(leads,))
            child.start()
            leads.wait()
            asked = os.getpgid(pid=child.pid), way(child.pid)
            child.join()
            seen.append((child.pid, *asked))
        return seen

    for seen in on_ranks(script, 2, Processes, folder=tmp_path):
        assert seen == [(pid,) * 3 for pid, *_ in seen]


def lead(leads):
    os.setpgid(0, 0)
    leads.wait()


def test_a_thread_may_fork_too(tmp_path):
    def script(run):
        found = []

        def work():
            child = os.fork()
            if child == 0:
                note("child")
                os._exit(6)
            found.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return found

    assert alike(script, 2, tmp_path) == [6]
    assert calls(tmp_path) == ["child"]


def test_a_port_that_the_script_listens_at_is_rank_0s(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as other:
        ports = [one.getsockname()[1], other.getsockname()[1]]

    def script(run):
        here, started = run.world.rank == 0, []

        def serve():
            started.append(socket.create_server(("127.0.0.1", ports[1])))

        with socket.create_server(("127.0.0.1", ports[0])) as server, socket.socket() as second:
            thread = threading.Thread(target=serve)
            thread.start()
            thread.join()
            taken = raised(lambda: second.bind(("127.0.0.1", ports[0])))
            bound = [each.getsockname()[1] for each in (server, *started)]
            started[0].close()
            return taken, bound == ports if here else not set(bound) & {*ports, 0}

    assert alike(script, 3, tmp_path) == (("OSError", "[Errno 98] Address already in use"), True)


def test_in_a_trial_nothing_is_forked_or_signalled(tmp_path):
    def script(run):
        with trial(run):
            return (
                raised(os.fork)[0],
                os.kill(os.getpid(), signal.SIGKILL),
                raised(lambda: os.waitpid(-1, 0))[0],
            )

    assert alike(script, 2, tmp_path) == ("OutOfReach", None, "OutOfReach")


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
        f"    os.execvp('sh', ['sh', '-c', 'echo became >> calls; cat; {ending}'])\n"
        "finally:\n"
        "    print('never')\n"
    )
    done = fork_cli("run", "-n", "2", "script.py", cwd=tmp_path, stdin="typed\n")
    assert (done.rc, done.out, done.theirs) == ((9 if "exit" in ending else 137), "typed\n", "")
    assert calls(tmp_path) == ["became"]


def test_what_cannot_be_executed_is_an_error_on_all(tmp_path):
    def script(run):
        return (
            raised(lambda: os.execv("/no/such/program", ["x"])),
            raised(lambda: os.execlp("no-such-program", "x")),
            raised(lambda: os.execv(sys.executable + "/x", ["x"])),
        )

    found = alike(script, 2, tmp_path)
    expected = [raised(lambda: os.execv("/no/such/program", ["x"]))]
    expected.append(raised(lambda: os.execlp("no-such-program", "x")))
    expected.append(raised(lambda: os.execv(sys.executable + "/x", ["x"])))
    assert list(found) == expected


@pytest.mark.parametrize(
    ("call", "word"),
    [
        ("os.execve('/bin/sh', argv, {'WORD': 'env'})", "env"),
        ("os.execve(path='/bin/sh', argv=argv, env={'WORD': 'env'})", "env"),
        ("os.execve('/bin/sh', argv)", "TypeError"),
        ("os.execv(path='/bin/sh', argv=argv)", "TypeError"),
    ],
    ids=["by place", "by name", "without env", "by a name that it does not take"],
)
def test_execve_takes_its_arguments_by_name(call, word, tmp_path):
    (tmp_path / "script.py").write_text(
        "import os\nargv = ['sh', '-c', 'echo $WORD > calls']\n"
        f"try:\n    {call}\nexcept TypeError:\n    open('calls', 'w').write('TypeError')\n"
    )
    assert fork_cli("run", "-n", "2", "script.py", cwd=tmp_path).rc == 0
    assert calls(tmp_path) == [word]
