"""A script of the tests as its author would have it on a GPU, which is these tests' accelerator.

Models are moved where they are made and batches where they come, as everybody writes it; in some
scripts whatever else is made, too.
"""

from __future__ import annotations

import ast

HELPER = """
import torch
from torch import nn
def _plain(x):
    return type(x) in (torch.Tensor, nn.Parameter) and x.layout is torch.strided
def _place(made):
    from torch.utils._pytree import tree_map
    if isinstance(made, nn.Module):
        return made.to({device!r})
    return tree_map(lambda x: x.to({device!r}) if _plain(x) else x, made)
def _place_model(made):
    return made.to({device!r}) if isinstance(made, nn.Module) else made
"""
STAYS = (
    "cpu",
    "numpy",
    "tolist",
    "item",
    "randperm",
    "get_rng_state",
    "load",
    "manual_seed",
    "Generator",
)


def called(name: str, *given: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(given), [])


def last_name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


class Placed(ast.NodeTransformer):
    """Models are moved where they are made, batches where they come."""

    def __init__(self, tensors: bool) -> None:
        self.tensors, self.inside = tensors, False

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        bases = ast.unparse(ast.Tuple(node.bases, ast.Load()))
        if "Module" not in bases:
            return node  # a data set, a sampler: they live in workers
        before, self.inside = self.inside, True
        self.generic_visit(node)
        self.inside = before
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        value = node.value
        if isinstance(value, ast.Call) and last_name(value) not in STAYS:
            everything = self.tensors or self.inside or last_name(value) == "next"
            node.value = called("_place" if everything else "_place_model", value)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        node.iter = called("map", ast.Name("_place", ast.Load()), node.iter)
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        target = ast.parse(ast.unparse(node.target), mode="eval").body
        moved = ast.Assign([node.target], called("_place", target))
        node.body.insert(0, ast.fix_missing_locations(ast.copy_location(moved, node)))
        return node


def rewritten(source: str, device: str, tensors: bool = False) -> str:
    """Return the script, on this device."""
    tree = Placed(tensors).visit(ast.parse(source))
    body = ast.unparse(ast.fix_missing_locations(tree))
    return HELPER.format(device=device) + body.replace("from __future__ import annotations\n", "")
