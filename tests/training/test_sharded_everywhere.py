"""Sharded parameters under the decorator and `verify`, and on two nodes."""

from __future__ import annotations

import re

import pytest
import torch

from tests.support.cli import run_cli, run_nodes, run_python
from tests.training.test_sharded_parameters import SCRIPTS

pytestmark = pytest.mark.slow

SCRIPT, SAID = SCRIPTS["adamw"], "elements of parameters are sharded over 2 ranks"
OPTIONS = ("--parameters", "sharded", str(SCRIPT))


@pytest.fixture
def alone(tmp_path):
    """What one process prints, and its file."""
    folder = tmp_path / "alone"
    folder.mkdir()
    done = run_python(SCRIPT, cwd=folder)
    assert not done.rc, done.err
    return done.out, torch.load(folder / "last.pt")


def test_the_decorator_shards_them(alone, tmp_path):
    text = re.sub(
        "(?=def main)", '@distributed(nproc=2, parameters="sharded")\n', SCRIPT.read_text()
    )
    path = tmp_path / "decorated.py"
    path.write_text(
        text.replace("import torch\n", "import torch\nfrom autoddp import distributed\n", 1)
    )
    done = run_python(path, cwd=tmp_path)
    assert (done.rc, done.out) == (0, alone[0]), done.err
    assert SAID in done.err
    torch.testing.assert_close(torch.load(tmp_path / "last.pt"), alone[1])


# its exit code tells whether the parameters were sharded, which `verify` does not say
SEEN = """
import sys
from torch import nn
weight = nn.Linear(30, 30).to("cpu").weight
sys.exit(3 * (type(weight) is not nn.Parameter))
"""


def test_verify_compares_them(tmp_path):
    done = run_cli("verify", "--nproc", "2", *OPTIONS, cwd=tmp_path)
    assert done.rc == 0, done.err
    assert "equal: 2 ranks give the numbers of one process" in done.out + done.err
    (tmp_path / "seen.py").write_text(SEEN)
    done = run_cli("verify", "--nproc", "2", *OPTIONS[:2], "seen.py", cwd=tmp_path)
    assert "the ranks end with exit code 3, one process with 0" in done.out + done.err


@pytest.mark.parametrize(("each", "over"), [(1, "2 ranks"), (2, "the 2 ranks of each node")])
def test_two_nodes_share_them(each, over, alone, tmp_path):
    done = run_nodes(*((tmp_path, ("-n", str(each), *OPTIONS)) for _ in range(2)))
    assert [node.rc for node in done] == [0, 0], [node.err for node in done]
    assert done[0].out == alone[0]
    assert f"elements of parameters are sharded over {over}: " in done[0].err
    torch.testing.assert_close(torch.load(tmp_path / "last.pt"), alone[1])
