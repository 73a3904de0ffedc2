"""Nodes that are not about to run the same say so, and run nothing."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch

from autoddp.comm.world import World
from autoddp.errors import BadInput
from autoddp.options import Options
from autoddp.process import meeting
from autoddp.process.script import Script
from tests.support.cli import environ
from tests.support.ports import free_port

TEXT = "import helper\nprint('it ran', helper.SIZE)\n"
# what node 1 has otherwise: options, arguments, files; and what is said of it
CASES = {
    "an option": (["--draws", "own"], [], {}, "--draws is own on node 1 and auto on"),
    "an argument": (
        [],
        ["--lr", "0.2"],
        {},
        "the script's command line is --lr 0.2 on node 1 and --lr 0.1 on node 0",
    ),
    "a module of its folder": ([], [], {"helper.py": "SIZE = 2\n"}, "the text of helper.py is "),
}


def start(node, folder, port, options=(), args=("--lr", "0.1"), **files):
    """`autoddp run` on one of two nodes."""
    folder.mkdir()
    for name, text in {"s.py": TEXT, "helper.py": "SIZE = 1\n", **files}.items():
        (folder / name).write_text(text)
    nodes = f"--nnodes 2 --node-rank {node} --master-addr 127.0.0.1 --master-port {port}".split()
    return subprocess.Popen(
        [sys.executable, "-m", "autoddp", "run", "-n", "1", *nodes, *options, "s.py", *args],
        cwd=folder,
        env=environ(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def both(tmp_path, options=(), args=(), files=None, first=None):
    port = free_port()
    nodes = [
        start(0, tmp_path / "0", port, **(first or {})),
        start(1, tmp_path / "1", port, options, args or ("--lr", "0.1"), **(files or {})),
    ]
    try:
        return [(*node.communicate(timeout=240), node.returncode) for node in nodes]
    finally:
        for node in nodes:
            node.kill()


@pytest.mark.cluster
@pytest.mark.parametrize("case", CASES)
def test_a_difference_is_named_and_nothing_runs(case, tmp_path):
    *other, said = CASES[case]
    for out, err, code in both(tmp_path, *other):
        assert (out, code) == ("", 2), err
        (line,) = (line for line in err.splitlines() if "start all nodes with the same" in line)
        assert said in line
        assert "ended with exit code" not in err, "the line says all"


@pytest.mark.cluster
def test_what_each_node_may_have_for_itself_is_not_compared(tmp_path):
    (out, err, code), (out2, err2, code2) = both(tmp_path, ["-q", "--hang-timeout", "40"])
    assert (out, code, out2, code2) == ("it ran 1\n", 0, "", 0), err + err2


def test_the_facts_are_those_of_the_command_the_files_and_the_versions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.py").write_text(TEXT)
    (tmp_path / "helper.py").write_text("SIZE = 1\n")
    found = meeting.facts(Script("s.py", ("--lr", "1")), Options(draws="own", quiet=True))
    assert found["--draws"] == "own"
    assert "--quiet" not in found
    assert found["the script's command line"] == "--lr 1"
    assert {"the text of s.py", "the text of helper.py"} <= set(found)
    assert {"the version of torch", "the version of Python", "the version of autoddp"} <= set(found)


def test_rank_0_refuses_once_all_have_read_why():
    """The store may be rank 0's, and end with it."""
    store = torch.distributed.HashStore()

    def refuse(said):
        raise BadInput("no")

    def rank(number):
        with pytest.raises(BadInput, match="no"):
            meeting.meet(store, World(number, 2, number, 2), "mine", refuse)

    store.set("said/1", '"mine"')
    first = threading.Thread(target=rank, args=(0,))
    first.start()
    first.join(0.5)
    assert first.is_alive()
    rank(1)
    first.join(2)
    assert not first.is_alive()


def ranks(tmp_path, commands):
    """Ranks that another launcher starts on one node, each by a command of its own."""
    (tmp_path / "s.py").write_text("print('it ran')\n")
    (tmp_path / "tmp").mkdir()
    port, size = free_port(), len(commands)
    given = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1"}
    started = [
        subprocess.Popen(
            [sys.executable, *command],
            cwd=tmp_path,
            env=environ(
                {
                    **{name: str(value) for name, value in given.items()},
                    "MASTER_PORT": str(port),
                    "TMPDIR": str(tmp_path / "tmp"),
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                }
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, command in enumerate(commands)
    ]
    try:
        return [(*rank.communicate(timeout=240), rank.returncode) for rank in started]
    finally:
        for rank in started:
            rank.kill()


@pytest.mark.cluster
def test_ranks_of_another_launcher_are_compared_on_one_node_too(tmp_path):
    run = ["-m", "autoddp", "run"]
    (out, err, code), other = ranks(tmp_path, [[*run, "s.py"], [*run, "--draws", "own", "s.py"]])
    assert (out, code) == ("", 2), err
    assert "--draws is own on rank 1 and auto on rank 0" in err
    assert "start all ranks with the same" in err
    assert other == ("", "", 2), "one rank of a node says it"
    assert not list((tmp_path / "tmp").iterdir()), "the logs are gone"
