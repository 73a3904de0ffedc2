"""Programs run once, on rank 0; every rank sees what they print and how they end."""

import gc
import io
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings

import pytest

from autoddp.effects import output_files, unhurried
from autoddp.effects.files import Files
from autoddp.effects.processes import Processes
from autoddp.effects.programs import Programs
from autoddp.effects.temporary import Temporary
from tests.effects.outward import on_ranks, raised, trial
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


@RANKS
def test_each_program_runs_once(nproc, tmp_path):
    def script(run):
        def shell(name):
            return f"echo {name} >> calls; echo out; echo err >&2; exit 3"

        done = subprocess.run(shell("run"), shell=True, capture_output=True)
        process = subprocess.Popen(shell("Popen"), shell=True, stderr=subprocess.DEVNULL)
        spawned = os.posix_spawn("/bin/sh", ["sh", "-c", shell("posix_spawn")], os.environ)
        return [
            (done.returncode, done.stdout, done.stderr),
            (process.wait(), type(process), process.pid > 0, repr(process)),
            subprocess.call(shell("call"), shell=True),
            subprocess.getstatusoutput(shell("getstatusoutput")),
            os.waitstatus_to_exitcode(os.system(shell("system"))),
            [(stream := os.popen(shell("popen"))).read(), stream.close()],
            os.waitstatus_to_exitcode(os.waitpid(spawned, 0)[1]),
        ]

    found = alike(script, nproc, tmp_path, Processes)
    names = ["run", "Popen", "posix_spawn", "call", "getstatusoutput", "system", "popen"]
    assert sorted(calls(tmp_path)) == sorted(names)
    assert found[0] == (3, b"out\n", b"err\n")
    assert found[1][:2] == (3, subprocess.Popen)
    assert found[3] == (3, "out\nerr")
    assert found[2] == found[4] == 3
    assert found[5:] == [["out\n", 3 << 8], 3]


@RANKS
def test_what_fails_fails_on_all(nproc, tmp_path):
    def script(run):
        def failure(command, **how):
            try:
                subprocess.run(command, check=True, **how)
            except (OSError, TypeError, ValueError, subprocess.SubprocessError) as error:
                facts = {key: value for key, value in vars(error).items() if key != "timeout"}
                return type(error).__name__, facts, getattr(error, "filename", None)

        return [
            failure("echo out; echo err >&2; exit 9", shell=True, capture_output=True, text=True),
            failure("echo early; exec sleep 50", shell=True, timeout=0.5, capture_output=True),
            failure(["/no/such/program"]),
            failure(["/etc/passwd"]),
            failure(["true"], cwd="/no/such/folder"),
            failure(["true"], preexec_fn=lambda: 1 / 0),
            failure(["true"], bufsize="large"),
            failure(["true"], input=b"", stdin=subprocess.PIPE),
        ]

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
        said = []
        for word in ("eins", "zwöi"):
            print(word, file=echo.stdin, flush=True)
            said.append(echo.stdout.readline())
        echo.stdin.close()
        with subprocess.Popen(
            "printf 'a\\n\\377b\\ncd'", shell=True, stdout=subprocess.PIPE
        ) as made:
            parts = [
                made.stdout.read(1),
                made.stdout.readline(),
                list(made.stdout),
                made.stdout.read(),
            ]
        with subprocess.Popen(["printf", "x\\ny"], stdout=subprocess.PIPE) as wrapped:
            lines = io.TextIOWrapper(wrapped.stdout, "utf-8").readlines()
        first = subprocess.Popen(["printf", "b\\na\\n"], stdout=subprocess.PIPE)
        second = subprocess.Popen(["sort"], stdin=first.stdout, stdout=subprocess.PIPE)
        first.stdout.close()
        broken = subprocess.Popen(["true"], stdin=subprocess.PIPE)
        broken.wait()
        ends = [
            echo.wait(),
            second.communicate(),
            first.wait(),
            echo.stdout.encoding.lower(),
            echo.stdin.closed,
        ]
        return [
            said,
            parts,
            lines,
            ends,
            raised(lambda: (broken.stdin.write(b"x"), broken.stdin.flush())),
        ]

    said, parts, lines, ends, broken = alike(script, 2, tmp_path)
    assert said == ["eins\n", "zwöi\n"]
    assert parts == [b"a", b"\n", [b"\xffb\n", b"cd"], b""]
    assert lines == ["x\n", "y"]
    assert broken[0] == "BrokenPipeError"
    assert ends == [0, (b"a\nb\n", None), 0, "utf-8", True]


def test_one_message_brings_many_lines_and_as_much_as_is_read(tmp_path):
    def script(run):
        def messages(act):
            before = run.group.passed
            found = act()
            return found, run.group.passed - before

        lines = subprocess.Popen(["seq", "900"], stdout=subprocess.PIPE, text=True)
        lines.wait()  # so that all of it is there
        large = subprocess.Popen(["head", "-c", "3000000", "/dev/zero"], stdout=subprocess.PIPE)
        buffer = bytearray(1000000)
        found = [
            messages(lambda: sum(map(int, lines.stdout))),
            messages(lambda: len(large.stdout.read(1000000))),
            messages(lambda: large.stdout.readinto(buffer)),
            messages(lambda: len(large.stdout.read())),
        ]
        return found, large.wait()

    (lines, read, filled, rest), code = alike(script, 2, tmp_path)
    assert lines[0] == sum(range(901))
    assert (read[0], filled[0], rest[0], code) == (1000000, 1000000, 1000000, 0)
    assert max(count for _, count in (lines, read, filled, rest)) <= 3


@pytest.mark.parametrize("text", [False, True])
def test_what_was_read_ahead_is_left_where_rank_0_cannot_be_asked(tmp_path, text):
    """In a trial all ranks would take it away, in a data set's fetch each another part."""

    def script(run):
        process = subprocess.Popen(["seq", "9"], stdout=subprocess.PIPE, text=text)
        out = process.stdout
        process.wait()
        first, refused = out.readline(), []
        acts = [out.readline, lambda: next(out), lambda: out.read(1), out.readlines]
        if not text:
            acts += [out.peek, out.read1, lambda: out.readinto(bytearray(1))]
        for act in acts:
            with trial(run):
                refused.append(raised(act)[0])
            if run.world.rank:
                with run.effects.context.internal():
                    refused.append(raised(act)[0])
        return int(first), [int(line) for line in out], set(refused)

    assert alike(script, 2, tmp_path) == (1, list(range(2, 10)), {"OutOfReach"})


def test_a_trial_writes_to_no_program(tmp_path):
    def script(run):
        process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        process.stdin.write(b"earnest")
        with trial(run):
            refused = [
                raised(lambda: process.stdin.write(b"trial"))[0],
                raised(process.stdin.flush)[0],
            ]
        return refused, process.communicate()[0]

    assert alike(script, 2, tmp_path) == (["OutOfReach"] * 2, b"earnest")


@pytest.mark.parametrize("text", [False, True])
def test_nobody_is_asked_when_a_pipe_is_dropped_before_it_is_flushed(tmp_path, text):
    """Ranks may drop it at different places; rank 0's program gets what was written."""

    def script(run):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            pipe = subprocess.PIPE
            process = subprocess.Popen("cat > made", shell=True, stdin=pipe, text=text)
            process.stdin.write("written" if text else b"written")
            if run.world.rank == 0:
                process.stdin = None
            run.group.call("between", lambda: None)
            process.stdin = None
        process.wait()
        with open("made") as made:
            return made.read()

    assert alike(script, 2, tmp_path) == "written"


def test_what_was_written_is_flushed_before_a_program_is_asked(tmp_path):
    def script(run):
        pipe = subprocess.PIPE
        process = subprocess.Popen(["sleep", "100"], stdin=pipe, stdout=pipe)
        process.stdin.write(b"a")
        late = raised(lambda: process.communicate(bytes(1000000), timeout=0.1))[0]
        process.stdin.flush()
        process.kill()
        return late, process.stdin.closed, process.wait()

    assert alike(script, 2, tmp_path) == ("TimeoutExpired", False, -9)


def test_a_thread_that_is_behind_reads_all_though_rank_0s_has_closed_the_pipe(tmp_path):
    def script(run):
        process = subprocess.Popen(["seq", "3"], stdout=subprocess.PIPE, text=True)
        found = []

        def work():
            for line in process.stdout:
                found.append(int(line))
                time.sleep(0.3 * run.world.rank)
            process.stdout.close()

        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(0.2)
        code = process.wait(), process.poll()
        thread.join()
        return found, code

    assert alike(script, 2, tmp_path) == ([1, 2, 3], (0, 0))


def test_megabytes_travel(tmp_path):
    def script(run):
        data = subprocess.check_output(["head", "-c", "5000000", "/dev/zero"])
        return (
            len(data),
            set(data),
            len(subprocess.run(["cat"], input=data, capture_output=True).stdout),
        )

    assert alike(script, 2, tmp_path) == (5000000, {0}, 5000000)


def test_a_running_program_is_watched_and_ended(tmp_path):
    def script(run):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            process = subprocess.Popen(["sleep", "100"])
            running = process.poll(), raised(lambda: process.wait(0.05))[0]
            process.terminate()
            ended = process.wait(), process.poll(), process.returncode
            process.kill()  # it has ended: nothing happens
            left = subprocess.Popen(["sleep", "100"])
            left.kill()
            del left
            gc.collect()
            return running, ended, [str(w.message) for w in said if run.world.rank]

    assert alike(script, 2, tmp_path)[:2] == ((None, "TimeoutExpired"), (-15, -15, -15))


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
            return one.read(), other.read()

    assert alike(script, 3, tmp_path, Files, Temporary) == ("a\nb\n", "head\nbody\ntail\n")


def test_every_rank_reads_back_what_a_program_wrote_to_an_open_file(tmp_path):
    def script(run):
        seen, many = [], output_files.PART + 5
        with tempfile.TemporaryFile() as file:
            subprocess.call(["head", "-c", str(many), "/dev/zero"], stdout=file)
            file.seek(0)
            seen.append(len(file.read()) - many)
        with open("log", "w+") as log:
            print("head", file=log, flush=True)
            both = {"stdout": log, "stderr": subprocess.STDOUT}
            subprocess.run("echo out; echo err >&2", shell=True, check=True, **both)
            print("tail", file=log)
            log.seek(0)
            seen.append(log.read())
        with open("log", "a") as log, open("log") as reader:
            subprocess.run(["echo", "more"], stderr=log, stdout=log, check=True)
            seen.append(reader.read().split()[-1])
        with open("dropped", "w") as log:
            process = subprocess.Popen("sleep 0.2; echo dropped", shell=True, stdout=log)
        os.system("true")
        process.wait()
        with open("dropped") as reader:
            return [*seen, reader.read()]

    found = alike(script, 3, tmp_path, Files, Temporary)
    assert found == [0, "head\nout\nerr\ntail\n", "more", "dropped\n"]
    assert (tmp_path / "log").read_text() == "head\nout\nerr\ntail\nmore\n"


def test_it_starts_when_all_ranks_are_here(tmp_path):
    def script(run):
        if run.world.rank:
            time.sleep(0.5)
            (tmp_path / "here").touch()
        return subprocess.getoutput("ls here")

    assert alike(script, 2, tmp_path) == "here"


def test_threads_share_programs_too(tmp_path):
    def script(run):
        found = {}

        def work(name):
            done = subprocess.run(
                f"echo {name} >> calls; cat", shell=True, input=name, text=True, stdout=-1
            )
            found[name] = done.stdout, os.system(f"echo {name} >> calls; exit 2")

        process = subprocess.Popen("seq 3; exit 4", shell=True, stdout=subprocess.PIPE, text=True)
        threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
        threads.append(threading.Thread(target=lambda: found.update(lines=list(process.stdout))))
        order = threads if run.world.rank else threads[::-1]
        for thread in order:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(found.items()), process.wait()

    found, code = alike(script, 2, tmp_path)
    assert found == [(name, (name, 512)) for name in "abc"] + [("lines", ["1\n", "2\n", "3\n"])]
    assert code == 4
    assert sorted(calls(tmp_path)) == list("aabbcc")


def test_a_threads_program_may_take_long_once_rank_0_has_come(tmp_path, monkeypatch):
    monkeypatch.setattr(unhurried, "PATIENCE", 0.2)

    def script(run):
        found = []

        def work():
            found.append(os.system("echo x >> calls; sleep 1; exit 3"))
            found.append(raised(lambda: run.world.rank and os.system("exit 4")))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return found

    zero, one = on_ranks(script, 2, Programs, folder=tmp_path)
    assert zero == [3 << 8, ("", "")]
    assert one == [
        3 << 8,
        ("Disagreement", "rank 1: no thread of rank 0's came to this os.system"),
    ]
    assert calls(tmp_path) == ["x"]


def test_a_librarys_programs_are_each_ranks_own(tmp_path):
    source = (
        "import subprocess\n"
        "def make():\n    subprocess.run('echo x >> calls', shell=True, check=True)\n"
    )

    def script(run):
        library = {}
        exec(compile(source, "/usr/lib/python3/site-packages/library.py", "exec"), library)
        library["make"]()

    on_ranks(script, 2, Programs, folder=tmp_path)
    assert calls(tmp_path) == ["x", "x"]


def test_in_a_trial_nothing_is_started(tmp_path):
    def script(run):
        process = subprocess.Popen(["sleep", "100"])
        with trial(run):
            tried = [
                raised(lambda: subprocess.run(["touch", "made"], check=False))[0],
                raised(lambda: os.system("touch made"))[0],
                raised(process.poll)[0],
            ]
        process.kill()
        return tried, process.wait(), os.listdir(".")

    assert alike(script, 2, tmp_path) == (["OutOfReach"] * 3, -9, [])


def test_where_rank_0_cannot_be_asked_an_error_says_so(tmp_path):
    def script(run):
        process = subprocess.Popen(["echo", "line"], stdout=subprocess.PIPE)
        with run.effects.context.internal():  # as in a data set's fetch
            inside = raised(process.stdout.readline)
        return inside, raised(process.stdout.fileno), process.communicate()

    first, second = on_ranks(script, 2, Programs, folder=tmp_path)
    assert first[0] == ("", "")
    assert second[0][0] == "OutOfReach"
    assert "data set's fetch" in second[0][1]
    assert first[1][0] == second[1][0] == "UnsupportedOperation"
    assert second[2] == first[2]


def test_asyncios_programs_run_on_every_rank_and_it_is_said(tmp_path):
    import asyncio

    async def main():
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", "echo x >> calls; echo hi", stdout=-1
        )
        return (await process.communicate())[0]

    def script(run):
        return asyncio.run(main()), [decision.what for decision in run.report.of("programs")]

    said, (decision,) = alike(script, 2, tmp_path, Processes)
    assert said == b"hi\n"
    assert "runs on every rank" in decision
    assert calls(tmp_path) == ["x", "x"]


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
