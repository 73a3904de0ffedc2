"""Programs run once, on rank 0; every rank sees what they print and how they end."""

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from autoddp.effects.programs import ALONE, BY_ASYNCIO, INTO_A_FILE, Programs
from autoddp.effects.temporary import Temporary
from tests.effects.outward import on_ranks, raised
from tests.launch import test_two_nodes
from tests.support.cli import environ

pytestmark = pytest.mark.slow

nodes = test_two_nodes.nodes
RANKS = pytest.mark.parametrize("nproc", [2, 3])


def alike(script, nproc, folder, *features):
    """What all ranks return, which is the same."""
    first, *others = on_ranks(script, nproc, Programs, *features, folder=folder)
    assert others == [first] * (nproc - 1)
    return first


def calls(folder):
    return (folder / "calls").read_text().split()


def said(run):
    """What was said of programs, as rank 0 tells."""
    return run.group.call("said", lambda: [decision.what for decision in run.report.of("programs")])


@RANKS
def test_each_program_runs_once(nproc, tmp_path):
    def script(run):
        def shell(name):
            return f"echo {name} >> calls; echo out; echo err >&2; exit 3"

        done = subprocess.run(shell("run"), shell=True, capture_output=True)
        process = subprocess.Popen(shell("Popen"), shell=True, stderr=subprocess.DEVNULL)
        return [
            (done.returncode, done.stdout, done.stderr),
            (process.wait(), type(process), process.pid > 0, repr(process)),
            subprocess.call(shell("call"), shell=True),
            subprocess.getstatusoutput(shell("getstatusoutput")),
            os.waitstatus_to_exitcode(os.system(shell("system"))),
            [(stream := os.popen(shell("popen"))).read(), stream.close()],
            said(run),
        ]

    found = alike(script, nproc, tmp_path)
    assert calls(tmp_path) == ["run", "Popen", "call", "getstatusoutput", "system", "popen"]
    assert found[0] == (3, b"out\n", b"err\n")
    assert found[1][:3] == (3, subprocess.Popen, True)
    assert found[3] == (3, "out\nerr")
    assert found[2] == found[4] == 3
    assert found[5:] == [["out\n", 3 << 8], []]


@RANKS
def test_what_fails_fails_on_all(nproc, tmp_path):
    def script(run):
        def failure(command, **how):
            try:
                subprocess.run(command, check=True, **how)
            except (OSError, TypeError, ValueError, subprocess.SubprocessError) as error:
                facts = {key: value for key, value in vars(error).items() if key != "timeout"}
                return type(error).__name__, facts, getattr(error, "filename", None)

        open_before = len(os.listdir("/proc/self/fd"))
        found = [
            failure("echo out; echo err >&2; exit 9", shell=True, capture_output=True, text=True),
            failure("echo early; exec sleep 50", shell=True, timeout=0.5, capture_output=True),
            failure(["/no/such/program"], capture_output=True),
            failure(["/etc/passwd"]),
            failure(["true"], cwd="/no/such/folder"),
            failure(["true"], preexec_fn=lambda: 1 / 0),
            failure(["true"], bufsize="large"),
            failure(["true"], input=b"", stdin=subprocess.PIPE),
        ]
        assert len(os.listdir("/proc/self/fd")) == open_before
        return found

    found = alike(script, nproc, tmp_path)
    assert found[0][1]["output"] == "out\n"
    assert found[0][1]["stderr"] == "err\n"
    assert found[1][0] == "TimeoutExpired"
    assert found[1][1]["output"] == b"early\n"
    assert found[2][::2] == ("FileNotFoundError", "/no/such/program")
    assert found[3][::2] == ("PermissionError", "/etc/passwd")
    assert found[4][::2] == ("FileNotFoundError", "/no/such/folder")
    assert [kind for kind, *_ in found[5:]] == ["SubprocessError", "TypeError", "ValueError"]


def test_pipes_are_read_by_all_and_written_once(tmp_path):
    def script(run):
        echo = subprocess.Popen(
            ["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        heard = []
        for word in ("eins", "zwöi"):
            print(word, file=echo.stdin, flush=True)
            heard.append(echo.stdout.readline())
        echo.stdin.close()
        with subprocess.Popen(
            "printf 'a\\n\\377b\\ncd'", shell=True, stdout=subprocess.PIPE
        ) as made:
            parts = [made.stdout.read(1), made.stdout.readline(), list(made.stdout)]
        first = subprocess.Popen(["printf", "b\\na\\n"], stdout=subprocess.PIPE)
        second = subprocess.Popen(["sort"], stdin=first.stdout, stdout=subprocess.PIPE, bufsize=0)
        first.stdout.close()
        many = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        size = len(many.communicate(bytes(3_000_000))[0]), many.stdin.closed, many.stdout.closed
        descriptor = raised(echo.stdout.fileno)
        return [heard, parts, second.communicate(), echo.wait(), first.wait(), size, descriptor]

    heard, parts, *ends, size, descriptor = alike(script, 2, tmp_path)
    assert heard == ["eins\n", "zwöi\n"]
    assert parts == [b"a", b"\n", [b"\xffb\n", b"cd"]]
    assert ends == [(b"a\nb\n", None), 0, 0]
    assert size == (3_000_000, True, True)
    assert descriptor[0] == "UnsupportedOperation"
    assert "on rank 0 alone; read it by its methods" in descriptor[1]


def test_a_thread_asks_a_program_on_rank_0_and_is_told_on_the_others_that_it_cannot(tmp_path):
    def script(run):
        process = subprocess.Popen(["seq", "3"], stdout=subprocess.PIPE, text=True)
        found = []
        thread = threading.Thread(target=lambda: found.append(raised(lambda: [*process.stdout])))
        thread.start()
        thread.join()
        return found[0][0], process.wait()

    first, *others = on_ranks(script, 3, Programs, folder=tmp_path)
    assert first == ("", 0)
    assert others == [("OutOfReach", 0)] * 2


def test_a_running_program_is_watched_and_ended(tmp_path):
    def script(run):
        process = subprocess.Popen(["sleep", "100"])
        os.kill(process.pid, 0)
        running = process.poll(), raised(lambda: process.wait(0.05))[0]
        process.terminate()
        ended = process.wait(), process.poll(), process.returncode
        process.kill()  # it has ended: nothing happens
        return running, ended, raised(lambda: os.kill(process.pid, 0))[0]

    assert alike(script, 2, tmp_path) == (
        (None, "TimeoutExpired"),
        (-15, -15, -15),
        "ProcessLookupError",
    )


def test_every_rank_finds_what_a_program_wrote(tmp_path):
    def script(run):
        handle, path = tempfile.mkstemp(dir=".")
        os.write(handle, b"b\na\n")
        os.close(handle)
        subprocess.run(["sort", "-o", path, path], check=True)
        with open("log", "w") as log:
            print("head", file=log, flush=True)
            subprocess.run(["echo", "body"], stdout=log, check=True)
        os.system("echo tail >> log")
        with open(path) as one, open("log") as other:
            found = one.read(), other.read(), said(run)
        with open("back", "w+") as file:
            subprocess.run(["echo", "out"], stdout=file, check=True)
        return found, said(run), Path("back").read_text()

    found = alike(script, 3, tmp_path, Files, Folders, Temporary)
    assert found == (("a\nb\n", "head\nbody\ntail\n", []), [INTO_A_FILE], "out\n")


def test_it_starts_when_all_ranks_are_here(tmp_path):
    def script(run):
        if run.world.rank:
            time.sleep(0.5)
            (tmp_path / "here").touch()
        return subprocess.getoutput("ls here")

    assert alike(script, 2, tmp_path) == "here"


def program():
    return subprocess.check_output("echo x >> calls; echo hi", shell=True)


def test_what_a_thread_starts_every_rank_starts_and_it_is_said(tmp_path):
    def script(run):
        found = []
        thread = threading.Thread(target=lambda: found.append(program()))
        thread.start()
        thread.join()
        return found, said(run)

    assert alike(script, 2, tmp_path) == ([b"hi\n"], [ALONE])
    assert calls(tmp_path) == ["x", "x"]


def test_what_asyncio_starts_every_rank_starts_and_it_is_said(tmp_path):
    async def main():
        shell = "echo x >> calls; echo hi"
        process = await asyncio.create_subprocess_exec("sh", "-c", shell, stdout=-1)
        return (await process.communicate())[0]

    def script(run):
        return asyncio.run(main()), said(run)

    assert alike(script, 2, tmp_path) == (
        b"hi\n",
        [f"asyncio.unix_events._UnixSubprocessTransport._start: {BY_ASYNCIO}"],
    )
    assert calls(tmp_path) == ["x", "x"]


@pytest.mark.parametrize(
    ("library", "times"),
    [("git/cmd.py", 1), ("torch/_inductor/cpp_builder.py", 2)],
    ids=["any", "a compiler"],
)
def test_a_librarys_programs_run_once_but_those_of_compilers(library, times, tmp_path):
    source = "import subprocess\ndef make():\n    subprocess.run('echo x >> calls', shell=True)\n"

    def script(run):
        names = {}
        exec(compile(source, f"/usr/lib/python3/site-packages/{library}", "exec"), names)
        names["make"]()
        return said(run)

    assert alike(script, 2, tmp_path) == []
    assert calls(tmp_path) == ["x"] * times


def test_where_rank_0_cannot_be_asked_an_error_says_so(tmp_path):
    def script(run):
        process = subprocess.Popen(["echo", "line"], stdout=subprocess.PIPE)
        with run.effects.context.internal():  # as in a data set's fetch
            inside = raised(process.stdout.readline)
        return inside, raised(process.communicate)

    first, second = on_ranks(script, 2, Programs, folder=tmp_path)
    assert first[0] == ("", "")
    assert second[0][0] == "OutOfReach"
    assert "data set's fetch" in second[0][1]
    assert second[1] == first[1]


def test_at_the_end_rank_0_ends_its_programs_and_starts_some(tmp_path):
    (tmp_path / "script.py").write_text(
        "import atexit, os, subprocess\n"
        "process = subprocess.Popen(['sleep', '100'])\n"
        "def end():\n"
        "    process.kill()\n"
        "    print(process.wait(), subprocess.run('echo x >> calls', shell=True).returncode)\n"
        "atexit.register(end)\n"
    )
    from tests.support.cli import fork_cli

    done = fork_cli("run", "-n", "2", "script.py", cwd=tmp_path)
    assert (done.rc, done.out, done.theirs) == (0, "-9 0\n", "")
    assert calls(tmp_path) == ["x"]


def test_a_program_finds_the_environment_of_one_process(tmp_path):
    """The launcher's own variables are there for C libraries alone; our own programs work, too."""
    (tmp_path / "inner.py").write_text("open('inner', 'a').write('once\\n')\n")
    (tmp_path / "outer.py").write_text(
        "import json, os, subprocess, sys\n"
        "show = [sys.executable, '-c', 'import json, os; print(json.dumps(dict(os.environ)))']\n"
        "seen = [subprocess.check_output(show), "
        "subprocess.check_output(show, env=os.environ.copy())]\n"
        "seen += [os.popen(f'{show[0]} -c \"{show[2]}\"').read()]\n"
        "json.dump([dict(os.environ), *map(json.loads, seen)], open(sys.argv[1], 'w'))\n"
        "if sys.argv[2:]: "
        "subprocess.run([sys.executable, '-m', 'autoddp', *sys.argv[2:]], check=True)\n"
    )
    plain = {name: value for name, value in environ().items() if name != "OMP_NUM_THREADS"}

    def run(*command):
        line = [sys.executable, *command]
        done = subprocess.run(
            line, cwd=tmp_path, env=plain, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stderr

    run("outer.py", "one.json")
    run("-m", "autoddp", "run", "-n", "2", "outer.py", "two.json", "run", "-n", "2", "inner.py")
    assert (tmp_path / "inner").read_text() == "once\n"
    assert (tmp_path / "two.json").read_text() == (tmp_path / "one.json").read_text()


@pytest.fixture
def restored():
    """What the test does to this variable is undone."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    yield
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if before is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = before


def test_a_gpu_of_its_own_is_the_ranks_alone(restored):
    """Programs see all GPUs, as those of one process do; also by a copy of the environment."""
    from autoddp.comm.world import as_found, give, keep_to_libraries, without

    def child(name):
        return subprocess.getoutput(f"echo ${{{name}-none}}")

    for before in (None, "2,3"):
        given = {}
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
        give(given, "CUDA_VISIBLE_DEVICES", "2")
        with as_found(given):
            assert child("CUDA_VISIBLE_DEVICES") == (before or "none")
        assert child("CUDA_VISIBLE_DEVICES") == os.environ["CUDA_VISIBLE_DEVICES"] == "2"
        assert without(os.environ, given).get("CUDA_VISIBLE_DEVICES") == before
        assert without({"CUDA_VISIBLE_DEVICES": "1"}, given) == {"CUDA_VISIBLE_DEVICES": "1"}
    given = {}
    give(given, "SOME_POOL", "4")
    keep_to_libraries(given, "SOME_POOL")
    assert "SOME_POOL" not in os.environ
    assert child("SOME_POOL") == "4"
    with as_found(given):
        assert child("SOME_POOL") == "none"
    assert child("SOME_POOL") == "4"
    os.unsetenv("SOME_POOL")


def test_two_nodes_see_one_run_of_a_program(nodes, tmp_path):
    script = tmp_path / "s.py"
    script.write_text(
        f"import os, subprocess\nos.chdir({str(tmp_path)!r})\n"
        "ours = [name for name in os.environ "
        "if name.endswith('IFNAME') or name == 'PYTHONHASHSEED']\n"
        "command = 'echo x >> calls; "
        'ip -o -4 address | grep -c 10.213.77.1/; env | grep -E "IFN|HASHS"\'\n'
        "print(subprocess.getstatusoutput(command), ours, open('calls').read().split())\n"
        "process = subprocess.Popen(['sleep', '100'])\n"
        "os.kill(process.pid, 15)\nprint(process.wait(), process.pid, os.getpid())\n"
    )
    logs = tmp_path / "logs"
    job = test_two_nodes.Job(nodes, script, "--log-dir", str(logs), nprocs=(1, 1))
    (first, out, err), (second, _, err2) = job.end()
    assert (first.returncode, second.returncode) == (0, 0), err + err2
    assert out.startswith("(1, '1') [] ['x']\n-15 ")
    assert (logs / "rank1.log").read_text() == out
