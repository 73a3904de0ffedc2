"""Programs run once, on rank 0; every rank gets their output and status."""

import asyncio
import os
import subprocess
import threading

import pytest

from autoddp.effects.programs import APART, READ_BACK, Programs
from tests.effects.outward import on_ranks, raised

pytestmark = pytest.mark.slow

RANKS = pytest.mark.parametrize("nproc", [2, 3])


def alike(script, nproc, folder):
    """The result, which must be equal on all ranks."""
    first, *others = on_ranks(script, nproc, Programs, folder=folder)
    assert others == [first] * (nproc - 1)
    return first


def calls(folder):
    return (folder / "calls").read_text().split()


def said(run):
    """The lines of rank 0 about programs."""
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


def test_a_running_program_is_polled_and_terminated(tmp_path):
    def script(run):
        process = subprocess.Popen(["sleep", "100"])
        running = process.poll(), raised(lambda: process.wait(0.05))[0]
        process.terminate()
        return running, process.wait(), process.poll(), process.returncode

    assert alike(script, 2, tmp_path) == ((None, "TimeoutExpired"), -15, -15, -15)


def test_programs_of_threads_and_asyncio_run_on_every_rank_and_a_line_reports_it(tmp_path):
    async def main():
        process = await asyncio.create_subprocess_exec("sh", "-c", "echo x >> calls")
        return await process.wait()

    def script(run):
        thread = threading.Thread(target=lambda: subprocess.call("echo x >> calls", shell=True))
        thread.start()
        thread.join()
        return asyncio.run(main()), said(run)

    by_asyncio = f"asyncio.unix_events._UnixSubprocessTransport._start: {APART}"
    assert alike(script, 2, tmp_path) == (0, [f"subprocess.Popen: {APART}", by_asyncio])
    assert calls(tmp_path) == ["x"] * 4


def test_programs_that_write_to_an_open_file_run_on_every_rank_and_a_line_reports_it(tmp_path):
    def script(run):
        with open(f"out{run.world.rank}", "w+") as file:
            subprocess.run("echo x >> calls; echo out", shell=True, stdout=file)
            file.seek(0)
            return file.read(), said(run)

    assert alike(script, 2, tmp_path) == ("out\n", [f"subprocess.Popen: {READ_BACK}"])
    assert calls(tmp_path) == ["x"] * 2


@pytest.mark.parametrize(
    ("library", "times"),
    [("git/cmd.py", 1), ("torch/_inductor/cpp_builder.py", 2)],
    ids=["any", "a compiler"],
)
def test_programs_of_libraries_run_once_except_compilers(library, times, tmp_path):
    source = "import subprocess\ndef make():\n    subprocess.run('echo x >> calls', shell=True)\n"

    def script(run):
        names = {}
        exec(compile(source, f"/usr/lib/python3/site-packages/{library}", "exec"), names)
        names["make"]()
        return said(run)

    assert alike(script, 2, tmp_path) == []
    assert calls(tmp_path) == ["x"] * times


def test_at_exit_rank_0_ends_and_starts_programs(tmp_path):
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
