"""Torch's compiler is imported once for all ranks where a script will need it, unseen by it."""

from __future__ import annotations

import pytest

from tests.support.cli import run_cli

HERE = "'torch._dynamo' in sys.modules"
SET = "TORCHINDUCTOR_CACHE_DIR"


@pytest.fixture(autouse=True)
def not_set(monkeypatch):
    """The compiler sets it where it is imported, as in the tests' own process."""
    monkeypatch.delenv(SET, raising=False)


def job(tmp_path, text, env=None):
    """Run a script on two ranks, none of them a fork of the tests' own process."""
    (tmp_path / "job.py").write_text(text)
    return run_cli("run", "-n", "2", tmp_path / "job.py", env=env)


@pytest.mark.slow
def test_a_script_that_sets_variables_imports_it_itself_and_is_heeded(tmp_path):
    done = job(
        tmp_path,
        f"import os, sys\nprint({HERE})\nos.environ['TORCHDYNAMO_VERBOSE'] = '1'\n"
        "from torch import optim\nimport torch._dynamo\nprint(torch._dynamo.config.verbose)\n",
    )
    assert (done.rc, done.out) == (0, "False\nTrue\n"), done.err


@pytest.mark.slow
def test_the_script_finds_its_own_module_of_a_name_that_the_compiler_uses(tmp_path):
    (tmp_path / "statistics.py").write_text("mine = 'mine'\n")
    (tmp_path / "sympy").mkdir()  # a folder of something else, which python passes by
    (tmp_path / "sympy" / "notes.txt").write_text("")
    (tmp_path / "pstats").mkdir()
    (tmp_path / "pstats" / "__init__.py").write_text("from pstats.inner import mine\n")
    (tmp_path / "pstats" / "inner.py").write_text("mine = 'mine, too'\n")
    done = job(
        tmp_path,
        "import sys\nprint('sympy' in sys.modules)\n"
        "import statistics, pstats\nprint(statistics.mine, pstats.mine)\n"
        "import torch\nw = torch.ones(1, requires_grad=True)\nw.sum().backward()\n"
        "torch.optim.SGD([w], 1.0).step()\nprint(w.item())\n",
    )
    assert (done.rc, done.out) == (0, "True\nmine mine, too\n0.0\n"), done.err


@pytest.mark.slow
def test_a_loop_that_updates_weights_by_hand_imports_neither_it_nor_sympy(tmp_path):
    """As in one process, while batches are shared and when they are whole."""
    done = job(
        tmp_path,
        "import sys, torch\nlinear, was = torch.nn.Linear(3, 1), []\nfor _ in range(40):\n"
        "    was.append(type(linear(torch.ones(4, 3))))\n"
        "    linear(torch.ones(4, 3)).mean().backward()\n"
        "    with torch.no_grad():\n"
        "        linear.weight -= 0.1 * linear.weight.grad\n        linear.zero_grad()\n"
        f"print(was[0] is was[-1], {HERE}, 'sympy' in sys.modules)\n",
        env={"AUTODDP_PLACEMENT": "auto"},
    )
    assert (done.rc, done.out) == (0, "False False False\n"), done.err
    assert "batches are replicated" in done.err
