"""Nodes that are not about to run the same say so, and run nothing."""

from __future__ import annotations

import pytest

from tests.support.cli import run_nodes

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


def both(tmp_path, options=(), args=(), files=None):
    """What two nodes do of which the second has other options, arguments or files."""
    nodes = []
    for node, its in enumerate(({}, files or {})):
        folder = tmp_path / str(node)
        folder.mkdir()
        for name, text in {"s.py": TEXT, "helper.py": "SIZE = 1\n", **its}.items():
            (folder / name).write_text(text)
        given = (options, args) if node else ((), ())
        nodes.append((folder, [*given[0], "s.py", *(given[1] or ("--lr", "0.1"))]))
    return [(done.out, done.err, done.rc) for done in run_nodes(*nodes)]


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
