"""Programs run once, on rank 0; every rank sees what they print and how they end."""

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from autoddp.effects.programs import ALONE, BY_ASYNCIO, INTO_A_FILE, Programs
from autoddp.effects.temporary import Temporary
from tests.effects.outward import on_ranks, raised
from tests.support.cli import environ

pytestmark = pytest.mark.slow

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


def test_what_fails_fails_on_all(tmp_path):
    def script(run):
        def failure(command, **how):
            try:
                subprocess.run(command, check=True, **how)
            except (OSError, subprocess.SubprocessError) as error:
                facts = {key: value for key, value in vars(error).items() if key != "timeout"}
                return type(error).__name__, facts, getattr(error, "filename", None)

        return [
            failure("echo out; echo err >&2; exit 9", shell=True, capture_output=True, text=True),
            failure("echo early; exec sleep 50", shell=True, timeout=0.5, capture_output=True),
            failure(["/no/such/program"], capture_output=True),
            failure(["true"], preexec_fn=lambda: 1 / 0),
        ]

    found = alike(script, 2, tmp_path)
    assert [found[0][1][name] for name in ("output", "stderr")] == ["out\n", "err\n"]
    assert found[1][0] == "TimeoutExpired"
    assert found[1][1]["output"] == b"early\n"
    assert found[2][::2] == ("FileNotFoundError", "/no/such/program")
    assert found[3][0] == "SubprocessError"


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
        first = subprocess.Popen(["printf", "b\\na\\n"], stdout=subprocess.PIPE)
        second = subprocess.Popen(["sort"], stdin=first.stdout, stdout=subprocess.PIPE, bufsize=0)
        first.stdout.close()
        many = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        size = len(many.communicate(bytes(3_000_000))[0])
        return heard, second.communicate(), echo.wait(), first.wait(), size

    found = (["eins\n", "zwöi\n"], (b"a\nb\n", None), 0, 0, 3_000_000)
    assert alike(script, 2, tmp_path) == found


def test_a_thread_asks_a_program_on_rank_0_and_is_told_on_the_others_that_it_cannot(tmp_path):
    def script(run):
        process = subprocess.Popen(["seq", "3"], stdout=subprocess.PIPE, text=True)
        found = []
        thread = threading.Thread(target=lambda: found.append(raised(lambda: [*process.stdout])))
        thread.start()
        thread.join()
        return found[0][0], process.wait()

    assert on_ranks(script, 2, Programs, folder=tmp_path) == [("", 0), ("OutOfReach", 0)]


def test_a_running_program_is_watched_and_ended(tmp_path):
    def script(run):
        process = subprocess.Popen(["sleep", "100"])
        running = process.poll(), raised(lambda: process.wait(0.05))[0]
        process.terminate()
        return running, process.wait(), process.poll(), process.returncode

    assert alike(script, 2, tmp_path) == ((None, "TimeoutExpired"), -15, -15, -15)


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


def test_what_a_thread_or_asyncio_starts_every_rank_starts_and_it_is_said(tmp_path):
    async def main():
        process = await asyncio.create_subprocess_exec("sh", "-c", "echo x >> calls")
        return await process.wait()

    def script(run):
        thread = threading.Thread(target=lambda: subprocess.call("echo x >> calls", shell=True))
        thread.start()
        thread.join()
        return asyncio.run(main()), said(run)

    by_asyncio = f"asyncio.unix_events._UnixSubprocessTransport._start: {BY_ASYNCIO}"
    assert alike(script, 2, tmp_path) == (0, [ALONE, by_asyncio])
    assert calls(tmp_path) == ["x"] * 4


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
