"""Run the commands of README and docs/, and compare their output with what the pages show."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from autoddp import cli
from autoddp.options import ROWS
from autoddp.process.features import FEATURES
from tests.launch import test_two_nodes
from tests.support.cli import ROOT, environ, fork_cli, fork_python
from tests.support.ports import free_port
from tests.support.same import NUMBER, same_text

README = (Path(ROOT) / "README.md").read_text()
PAGES = {path.name: path.read_text() for path in sorted(Path(ROOT, "docs").glob("*.md"))}
CI = Path(ROOT) / ".ci" / "run"
DIGITS, SCANS = (Path(ROOT, "examples", "single_gpu", name) for name in ("digits.py", "scans.py"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.M | re.S)
BLOCKS = BLOCK.findall(README)
EVERY = [*BLOCKS, *(block for page in PAGES.values() for block in BLOCK.findall(page))]
TRAINS = ("train.py", "script.py", "package.train", "scans.py")
PRINTED = 2e-2  # as for the examples: float32, and what is printed are few digits of it

nodes = test_two_nodes.nodes


def commands() -> list[str]:
    """All commands in their order, with set-up lines split at `&&`."""
    lines = [line for kind, text in EVERY if kind == "sh" for line in text.splitlines()]
    parts = [part.strip() for line in lines for part in line.partition("#")[0].split("&&")]
    return list(dict.fromkeys(part for part in parts if part not in SHOWN))


# what is shown: a command behind "$", and what it printed
SHOWN = {
    text.splitlines()[0].removeprefix("$ "): text.splitlines()[1:]
    for kind, text in EVERY
    if kind == "console"
}
SET_UP = ("python3 -m venv", ". .venv", "pip ", "ruff ", "mypy", "pytest ")  # .ci/run runs these
ELSEWHERE = ("srun ", "mpirun ", "mkdocs ", "python -m tests.pages")  # test_pages.py has these
COMMANDS = [line for line in commands() if not line.startswith((*SET_UP, *ELSEWHERE))]
PAIR = [line for line in COMMANDS if "--node-rank" in line]
(MAIN,) = [line for line in SHOWN if "scans.py" in line]
(PLAIN,) = [line for line in COMMANDS if "python " in line and "scans.py" in line]
RECORDED = [line for line in COMMANDS if "--record" in line]  # one after the other
ALONE = [line for line in COMMANDS if line not in (*PAIR, MAIN, PLAIN, *RECORDED)]
ALONE.remove("python train.py")  # what all others are compared with


def short(line: str) -> str:
    """The command with one epoch of training, where no number of steps ends it."""
    trains = any(name in line for name in TRAINS) and "--steps" not in line
    return f"{line} --epochs 1" if trains else line


@pytest.fixture(scope="module")
def console(tmp_path_factory) -> dict[str, str]:
    """The environment of a shell that finds `autoddp`: the installed one where there is one."""
    folder = Path(sys.executable).parent
    found, variables = [str(folder)], environ()
    if (folder / "autoddp").exists():
        del variables["PYTHONPATH"]
    else:
        made = tmp_path_factory.mktemp("bin") / "autoddp"
        made.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m autoddp "$@"\n')
        made.chmod(0o755)
        found.append(str(made.parent))
    return variables | {"PATH": ":".join([*found, os.environ["PATH"]])}


@pytest.fixture
def start(console, tmp_path):
    """Start a line of shell where a user would type it."""
    project = tmp_path / "project"
    (project / "examples" / "single_gpu").mkdir(parents=True)
    (project / "package").mkdir()
    (project / "package" / "__init__.py").touch()
    for copy in ("train.py", "script.py", "package/train.py"):
        shutil.copy(DIGITS, project / copy)
    shutil.copy(SCANS, project / "examples" / "single_gpu")

    def begin(line: str | list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            line,
            shell=isinstance(line, str),
            cwd=project,
            env=console,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    begin.project = project
    return begin


def end(*processes: subprocess.Popen[str], codes: tuple[int, ...] = (0,)) -> list[tuple[str, str]]:
    """The output of processes, after all have ended with one of these exit codes."""
    try:
        printed = [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (out, err) in zip(processes, printed, strict=True):
        assert process.returncode in codes, f"{process.args}\n{out}\n{err}"
    return printed


def typed(line: str, start) -> tuple[str, str]:
    """The output of a command: `autoddp run` by a fork of a process with torch, others by a shell.

    `test_the_main_job_shows_what_readme_shows` and `test_two_machines` type `autoddp run`.
    """
    words = shlex.split(line)
    if words[:2] != ["autoddp", "run"]:
        return end(start(line))[0]
    done = fork_cli(*words[1:], cwd=start.project, timeout=240)
    assert done.rc == 0, f"{line}\n{done.out}\n{done.err}"
    return done.out, done.err


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What `python train.py` prints, with some arguments."""
    known: dict[str, str] = {}

    def output(arguments: str) -> str:
        if arguments not in known:
            folder = tmp_path_factory.mktemp("plain")
            done = fork_python(DIGITS, *arguments.split(), cwd=folder, timeout=240)
            assert done.rc == 0, done.err
            known[arguments] = done.out
        return known[arguments]

    return output


def in_order(shown: list[str], seen: list[str]) -> None:
    """Check that the lines of a page were printed in this order."""
    rest = iter(seen)
    for line in shown:
        assert line in rest, f"shown is {line!r}, but there was\n" + "\n".join(seen)


def shape(line: str) -> str:
    """A line of numbers without their values and their width."""
    return " ".join(NUMBER.sub("#", line).split()).replace("─", "")


@pytest.mark.slow
@pytest.mark.parametrize("line", ALONE)
def test_a_command(line, start, plain):
    out, err = typed(short(line), start)
    trained = re.search(rf"(?:{'|'.join(map(re.escape, TRAINS))})(.*)", short(line))
    if trained:
        same_text(plain(trained[1].strip()), out, PRINTED, "stdout")
        assert "Traceback" not in err
    else:
        assert len(out.splitlines()) > 5


@pytest.mark.slow
def test_two_machines(request, start, plain):
    """On two network namespaces; where these cannot be made, twice on this machine."""
    try:
        names, master, port = request.getfixturevalue("nodes"), test_two_nodes.ADDRESSES[0], 29500
    except pytest.skip.Exception:
        names, master, port = None, "127.0.0.1", free_port()
    assert len(PAIR) == 2
    lines = [short(line).replace("10.0.0.1", master).replace("29500", str(port)) for line in PAIR]
    assert len(set(lines)) == 2
    prefix = [["ip", "netns", "exec", name] if names else [] for name in names or "ab"]
    (out, err), (second, err2) = end(
        *(start([*before, "sh", "-c", line]) for before, line in zip(prefix, lines, strict=True))
    )
    same_text(plain("--epochs 1"), out, PRINTED, "stdout")
    assert second == ""
    assert "[autoddp] 4 ranks on 2 nodes, " in err
    assert "hostname of the client" not in err + err2, "torch misses DNS"


@pytest.mark.slow
def test_recordings(start):
    """They are made first, and then read."""
    made, read = RECORDED[:2], RECORDED[2:]
    for line in made:
        typed(short(line), start)
    ((summed, _),) = [end(start(line))[0] for line in read]
    assert "samples/s" in summed


@pytest.mark.slow
def test_the_decorator(start, plain):
    blocks = {text for kind, text in EVERY if kind == "python"}
    (block,) = {text for text in blocks if "@rule(" not in text}
    lines = block.splitlines()
    assert lines[0] == "from autoddp import distributed"
    assert lines[-1] == "def main():"
    script = DIGITS.read_text().replace("import argparse", f"{lines[0]}\nimport argparse")
    script = script.replace(lines[-1], "\n".join(lines[1:]).strip())
    (start.project / "train.py").write_text(script)
    ((out, err),) = end(start("python train.py --epochs 1"))
    same_text(plain("--epochs 1"), out, PRINTED, "stdout")
    assert "[autoddp] 2 ranks on 1 node" in err


@pytest.mark.slow
def test_the_main_job_shows_what_readme_shows(start):
    """And the same digits as `python`, which finds the scans that the ranks have written."""
    epochs = " --epochs 3"
    ((out, err),) = end(start(MAIN + epochs))
    ((want, _),) = end(start(PLAIN + epochs))
    assert out == want
    ours = [line for line in SHOWN[MAIN] if line.startswith("[autoddp]")]
    theirs = [line for line in SHOWN[MAIN] if line not in (*ours, "...")]
    in_order(ours, err.splitlines())
    in_order([shape(line) for line in theirs], [shape(line) for line in out.splitlines()])


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for line in SHOWN if line != MAIN])
def test_what_a_command_shows(line, start):
    """Line by line, apart from numbers and from what is left out."""
    found = end(start(short(line)), codes=(0, 1, 2))[0]
    seen = [[shape(line) for line in text.splitlines()] for text in found]
    ours = [shape(line) for line in SHOWN[line] if line.startswith("[autoddp]")]
    theirs = [shape(line) for line in SHOWN[line] if line != "..." and shape(line) not in ours]
    in_order(ours, [text for stream in seen for text in stream])
    in_order(theirs, seen[0])


def test_each_page_shows_the_same_of_a_command():
    """Where two pages show a command, they show the same of it."""
    for kind, text in EVERY:
        assert kind in ("sh", "bash", "console", "python", "ipython", "text", "yaml")
        if kind == "console":
            first, *shown = text.splitlines()
            assert first.startswith("$ ")
            assert shown == SHOWN[first.removeprefix("$ ")]


def test_set_up_is_what_ci_runs():
    (install, check) = [text.strip() for kind, text in BLOCKS if kind == "sh"][1:3]
    script = CI.read_text()
    assert CI.stat().st_mode & stat.S_IXUSR
    assert f" {check}\n" in script
    assert "python3 -m venv " in script
    assert install.startswith(
        "python3 -m venv .venv && . .venv/bin/activate && pip install -q '.[examples]' && "
    )
    extras = tomllib.loads((Path(ROOT) / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert set(extras["examples"]) <= set(extras["test"]), (
        "what .ci/run installs would not do for it"
    )


def test_every_option_that_is_named_exists():
    features = {feature.name for feature in FEATURES}
    every = typer.main.get_command(cli.app).commands.values()
    known = {name for command in every for option in command.params for name in option.opts}
    known |= {"--help", "--strict"}  # of every command; of mkdocs, too
    text = "\n".join([README, *PAGES.values()])
    named = re.findall(r"`(--[\w-]+)(?: ([\w,-]+))?`", text)
    assert len(named) > 40
    for option, value in named:
        assert option in known
        if option == "--disable" and value and value != "NAME":
            assert set(value.split(",")) <= features
        elif value and (row := ROWS.get(option[2:].replace("-", "_"))) and row.choices:
            assert value in row.choices


def test_every_module_is_in_the_list():
    """Folders, those at the top and the features by their names."""
    (table,) = re.findall(
        r"^\| where \| what \|\n.*?\n\n", PAGES["architecture.md"], flags=re.M | re.S
    )
    named = set(re.findall(r"`(\w+)/?`", table))
    package = Path(ROOT) / "autoddp"
    modules = [feature.__module__.split(".") for feature in FEATURES]
    files = {path.stem for path in package.glob("*.py")}
    files |= {parts[-1] for parts in modules if parts[1] in ("training", "effects")}
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    missing = {name for name in files | folders if not name.startswith("_")} - named
    assert not missing, f"the list of modules lacks {missing}"
    there = {path.stem for path in package.rglob("*.py")} | {
        path.parent.name for path in package.rglob("*.py")
    }
    extra = named - there - {"Rows", "python"}
    assert not extra, f"the list of modules names {extra}, which are none"
