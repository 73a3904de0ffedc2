"""Backwards of autograd functions that are certain to go by elements, as their source tells."""

from __future__ import annotations

import importlib.util
import textwrap

import pytest
import torch
from torch.utils import checkpoint

from autoddp.view.proof.functions import by_rows

BY_ELEMENT = {
    "a product": "return g * 2",
    "what was saved": "x, y = ctx.saved_tensors\nreturn g * torch.sigmoid(x) * y.exp()",
    "one that was saved": "return g * ctx.saved_tensors[0]",
    "a condition": "x, y = ctx.saved_tensors\ng = g.clone()\ng[x.abs() > 1] = 0\nreturn g",
    "two conditions": "x, y = ctx.saved_tensors\ng[~(x > 1) & x.le(3)] = 0\nreturn g",
    "a number of the forward": "return g * ctx.alpha",
    "if it is wanted": "return g.neg() if ctx.needs_input_grad[0] else None",
    "a placeholder": "x = y = None\nif ctx.needs_input_grad[0]:\n    x = g / 2\nreturn x, y",
    "a choice": "x, = ctx.saved_tensors\nreturn torch.where(x > 0, g, torch.zeros_like(g))",
    "a choice of a method": "x, = ctx.saved_tensors\nreturn g.where(x > 0, 0)",
    "what is masked": "x, = ctx.saved_tensors\nreturn g.masked_fill(x > 1, 0) * (x < 1).type_as(g)",
    "a sum of two": "h = 2 * g\nreturn g + h.mul(ctx.alpha), None",
    "in place": "h = g.clone()\nh *= ctx.alpha\nh += g\nreturn -h",
}
NOT_LINEAR = {
    "clipped": "return g.clamp(-0.02, 0.02)",
    "clipped in place": "h = g.clone()\nh.clamp_(-1, 1)\nreturn h",
    "by a function": "return torch.nn.functional.hardtanh(g)",
    "its sign": "return 0.01 * g.sign()",
    "and a number": "return g + ctx.alpha",
    "and a number in place": "h = g.clone()\nh += 1\nreturn h",
    "a square": "return g * g",
    "a power": "return g**2",
    "divided by": "return ctx.alpha / g",
    "chosen by itself": "return torch.where(g > 0, g, 0.1 * g)",
    "masked by itself": "h = g.clone()\nh[g.abs() > 1] = 0\nreturn h",
    "a number for some": "x, = ctx.saved_tensors\ng[x > 1] = 1\nreturn g",
    "filled": "x, = ctx.saved_tensors\nreturn g.masked_fill(x > 1, ctx.alpha)",
    "a constant": "return torch.ones_like(g)",
    "what was saved alone": "return ctx.saved_tensors[0]",
    "only if large": "if g.abs().max() > 1:\n    g = g / 2\nreturn g",
}
MIXING = NOT_LINEAR | {
    "a mean": "return g - g.mean(0)",
    "a sum": "return g * g.sum()",
    "a draw": "return g * torch.rand_like(g)",
    "a row": "return g * g[0]",
    "rows": "return g * g[1:2]",
    "the last row": "return g * g[-1]",
    "a row by a sum": "return g * g[ctx.alpha - 1]",
    "a row by a call": "return g * g[int(ctx.alpha)]",
    "the number of rows": "return g / len(g)",
    "the rows in turn": "for row in g:\n    g = g + row\nreturn g",
    "a product of matrices": "return g @ ctx.alpha",
    "a helper": "return helper(g)",
    "what the forward kept": "return ctx.act(g)",
    "an unknown name": "return g.flip(0)",
}
SOURCE = """
import torch

def helper(g):
    return g.flip(0)

class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.alpha, ctx.act = 2, torch.sum
        return x

    @staticmethod
    def backward(ctx, g):
        BODY
"""


@pytest.fixture
def kind(tmp_path):
    """The function whose backward has these lines."""

    def make(body):
        path = tmp_path / "functions_of_a_test.py"
        path.write_text(SOURCE.replace("        BODY", textwrap.indent(body, " " * 8)))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.Function

    return make


@pytest.mark.parametrize("what", BY_ELEMENT)
def test_what_goes_by_elements_is_by_rows(what, kind):
    assert by_rows(kind(BY_ELEMENT[what]))


@pytest.mark.parametrize("what", MIXING)
def test_what_may_mix_rows_is_not(what, kind):
    assert not by_rows(kind(MIXING[what]))


def test_what_has_no_source_is_not():
    space = {"torch": torch}
    exec(SOURCE.replace("BODY", "return g"), space)
    assert not by_rows(space["Function"])


def test_torchs_own_are():
    assert by_rows(checkpoint.CheckpointFunction)
