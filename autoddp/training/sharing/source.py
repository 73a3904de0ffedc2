"""The syntax of a function, as its source tells."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator
from types import CodeType
from typing import Any


def nodes_of(code: CodeType) -> list[Any]:
    """Return the function's node in the source, several if lambdas share a line; none if unread."""
    return [node for line, node in _functions(code.co_filename) if line == code.co_firstlineno]


@functools.lru_cache(maxsize=64)
def _functions(path: str) -> list[tuple[int, Any]]:
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return []
    return list(_listed(tree))


def _listed(tree: ast.AST) -> Iterator[tuple[int, Any]]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield min([node.lineno, *(d.lineno for d in node.decorator_list)]), node
        elif isinstance(node, ast.Lambda):
            yield node.lineno, node
