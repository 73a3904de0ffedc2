import ast
import importlib
import sys

import torch
from torch import nn

from autoddp.effects.identity import identity_checks
from tests.support.training import batches, mlp, on_ranks
from tests.training.test_explanation import told


def test_what_compares_a_type_by_is_is_found():
    source = """
import torch
from torch import Tensor
def move(x):
    if type(x) is torch.Tensor:
        return x
    return x if Tensor is not type(x) else None
fine = isinstance(move, torch.Tensor) or type(move) == torch.Tensor
fine = move is not None and type(fine) is bool and torch.Tensor is Tensor
"""
    assert list(identity_checks(source)) == [5, 7]
    assert list(identity_checks("%matplotlib inline\ntype(x) is Tensor")) == []


def test_a_parser_that_loses_count_ends_nothing(monkeypatch):
    """Python 3.11 raises SystemError where a collection fell into the making of a tree."""
    parse, lost = ast.parse, [SystemError("AST constructor recursion depth mismatch")] * 2

    def loses_count(source, *args, **kwargs):
        if lost and "lost = " in source:
            raise lost.pop()
        return parse(source, *args, **kwargs)

    monkeypatch.setattr(ast, "parse", loses_count)
    assert identity_checks("lost = type(x) is Tensor") == (1,)
    lost.extend([SystemError("always")] * 99)
    assert identity_checks("lost = 1, type(x) is Tensor") == ()


def test_it_is_said_with_its_line_before_the_first_batch(tmp_path):
    # a module of its own: what this one holds would be said to every test of this process
    (tmp_path / "asks.py").write_text(
        "import torch\n\ndef asks(x):\n    return type(x) is torch.Tensor\n"
    )

    def script(stream):
        sys.path.insert(0, str(tmp_path))
        importlib.import_module("asks")
        next(iter(batches(6, 3)))
        return [line for line in stream.getvalue().splitlines() if "is` tells" in line]

    (lines, _), (none, _) = told(script)
    assert not none
    said = [line for line in lines if line.startswith("[autoddp] asks.py:4:")]
    assert len(said) == 1
    assert said[0].endswith("or type(x) == torch.Tensor, or run with --view local")


def test_to_a_script_a_batch_is_a_tensor():
    def script():
        x, y = next(iter(batches(6, 6)))
        out = mlp()(x)
        kinds = [type(v) for v in (x, out, nn.functional.cross_entropy(out, y))]
        shown = kinds[0] is not torch.Tensor and str(kinds[0])  # `is` cannot be answered rightly
        return [
            (
                kind == torch.Tensor,
                kind != torch.Tensor,
                kind in (int, torch.Tensor),
                kind == nn.Parameter,
            )
            for kind in kinds
        ] + [str(kinds), x.__class__ is torch.Tensor, isinstance(x, torch.Tensor), bool(shown)]

    found = on_ranks(script, 2)
    assert found[0] == [(True, False, True, False)] * 3 + [
        "[<class 'torch.Tensor'>, <class 'torch.Tensor'>, <class 'torch.Tensor'>]",
        True, True, True,
    ]  # fmt: skip
    assert found[0] == found[1]
