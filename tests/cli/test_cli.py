"""The command line: options of autoddp and of the script; errors are one line, exit code 2."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from autoddp import cli, launch
from autoddp.options import Options
from autoddp.process.script import Script
from tests.support.cli import environ, run_cli


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """The arguments of `launch.run` for a command line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.py").write_text("print('ran')\n")
    calls = []
    monkeypatch.setattr(launch, "run", lambda *given: calls.append(given) or 0)

    def ask(*arguments: str) -> tuple[Script, Options]:
        assert cli.command(["run", *arguments]) == 0
        return calls[-1]

    return ask


def test_everything_after_the_script_is_the_scripts(asked):
    rest = ("--nproc", "3", "--help", "-v", "--", "x", "-m")
    script, options = asked("--nproc", "2", "s.py", *rest)
    assert script == Script("s.py", rest)
    assert options == Options(nproc=2, placement="sharded")


def test_a_module_and_its_arguments(asked):
    assert asked("-m", "pkg.mod", "-n", "3")[0] == Script("pkg.mod", ("-n", "3"), module=True)


def test_every_option_arrives(asked):
    given = Options(
        placement="sharded",
        nproc=2,
        nnodes=3,
        node_rank=1,
        master_addr="10.0.0.1",
        master_port=1234,
        module=True,
        backend="gloo",
        view="local",
        batchnorm="local",
        loading="each",
        draws="own",
        own_ddp="no",
        disable=("loaders", "files", "modules"),
        strict=True,
        report="r.json",
        log_dir="logs",
        verbose=True,
        quiet=True,
    )
    line = (
        "-n 2 --nnodes 3 --node-rank 1 --master-addr 10.0.0.1 --master-port 1234 -m "
        "--backend gloo --view local --batchnorm local "
        "--loading each --draws own --own-ddp no --strict --report r.json --log-dir logs -v -q"
    )
    line += " --disable loaders,files --disable modules"
    assert asked(*line.split(), "s")[1] == given


BAD = {
    "no script": ("run", "no script given; usage: autoddp run [OPTIONS] SCRIPT [ARGS...]"),
    "no such script": ("run none.py", "none.py': No such file or directory"),
    "a directory": ("run .", "/.': Is a directory"),
    "python": ("run python s.py", "give the path of a script, without python before it"),
    "a notebook": ("run s.ipynb", "s.ipynb is a notebook; jupyter nbconvert --to script converts"),
    "a module's file": ("run -m s.py", "no module named s.py; give its name without .py"),
    "a package": ("run -m pkg", "no module named pkg.__main__; "),
    "no value": ("run --nproc", "requires an argument; see autoddp run --help"),
    "a text": ("run -c pass", "No such option: -c"),
    "standard input": ("run -", "/-': No such file or directory"),
    "a port in the address": (
        "run --nnodes 2 --node-rank 1 --master-addr 127.0.0.1:29500 s.py",
        "--master-addr is 127.0.0.1:29500, which this machine cannot resolve; give an address that "
        "every node can reach, and its port by --master-port",
    ),
    "a folder for the report": (
        "run -n 2 --report pkg s.py",
        "--report is pkg, which is a folder; give a file in it",
    ),
    "no ranks": ("run -n 0 s.py", "--nproc is 0; a job has at least 1 rank on each node"),
    "too many ranks": ("run -n 4000 s.py", "--nproc is 4000, but "),
    "many": ("run --nproc many s.py", "--nproc is 'many'; it takes a whole number"),
    "node": (
        "run --node-rank 5 --nnodes 2 s.py",
        "--node-rank is 5 with --nnodes 2; use 0 to 1",
    ),
    "no master": (
        "run --nnodes 2 s.py",
        "--nnodes is 2 without --master-addr; give the address of node 0, the same on every node",
    ),
    "port": ("run -n 2 --master-port 70000 s.py", "--master-port is 70000; use a port from 1 to"),
    "backend": (
        "run --backend mpi s.py",
        "--backend is 'mpi'; it takes auto, nccl, gloo, ",
    ),
    "feature": ("run --disable nothing s.py", "--disable is 'nothing'; it takes "),
    "option": ("run --bogus s.py", "No such option: --bogus"),
    "command": ("walk s.py", "No such command 'walk'; see autoddp --help"),
    "log folder": ("run -n 2 --log-dir s.py s.py", "--log-dir is s.py, which cannot be written"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_done_is_one_line(case, monkeypatch, tmp_path, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.py").write_text("print('ran')\n")
    (tmp_path / "s.ipynb").write_text("{}")
    (tmp_path / "pkg").mkdir()
    arguments, text = BAD[case]
    assert cli.command(arguments.split()) == 2
    out, err = capfd.readouterr()
    assert out == "", "nothing was started"
    assert err.startswith("[autoddp] ")
    assert text in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "nodes", [(), ("--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1")]
)
def test_port_in_use(tmp_path, nodes):
    script = tmp_path / "s.py"
    script.write_text("print('ran')")
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        done = run_cli("run", "-n", 2, *nodes, "--master-port", port, script)
    assert (done.rc, done.out) == (2, "")
    assert done.err == (
        f"[autoddp] --master-port is {port}, which cannot be used (Address already in use); "
        "give a free port, the same one on every node\n"
    )


def test_patches_are_listed_with_target_and_reason():
    done = run_cli("patches")
    assert done.rc == 0, done.err
    lines = iter(done.out.splitlines())
    for feature in launch.features():
        assert next(lines) == f"{feature.name} · --disable {feature.name} · {feature.without}"
        for patch in feature.patches():
            name, targets, why = next(lines).split(" · ", 2)
            assert (name, why) == (feature.name, patch.why)
            assert all(target in targets for target in patch.targets)
    assert not list(lines)


def test_env_shows_what_a_bug_report_needs():
    done = run_cli("env", env={"RANK": "1"})
    assert done.rc == 0, done.err
    assert f"python: {sys.version.split()[0]} on " in done.out
    for name in ("autoddp", "torch", "torchvision", "wrapt", "cores", "GPUs", "CUDA", "backends"):
        assert f"{name}" in done.out
    assert "job: RANK=1" in done.out


def test_a_closed_pipe_gives_no_traceback():
    command = [sys.executable, "-m", "autoddp", "patches"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, env=environ(), check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")
