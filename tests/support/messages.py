"""Messages that pages quote, compared with the texts in the code.

"…" stands for a value that is filled in. An entry of docs/troubleshooting.md may be the beginning
of a text.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.support.cli import ROOT

PAGE = Path(ROOT) / "docs" / "troubleshooting.md"
ENTRY = re.compile(r"^(`?)(.+?)\1\n:   (.+)$", flags=re.M)  # a message in backticks, or words
LEAST = 8  # letters of an entry that may be the beginning of several texts


def template(node: ast.AST) -> str | None:
    """A string with "…" for each value; None if its beginning is not a literal."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) or "…" for part in node.values)
    if isinstance(node, ast.BinOp) and (left := template(node.left)) is not None:
        return left + (template(node.right) or "…")
    return None


def texts(package: Path) -> set[str]:
    """All string literals of a package."""
    trees = (ast.parse(path.read_text()) for path in package.rglob("*.py"))
    return {text for tree in trees for node in ast.walk(tree) if (text := template(node))}


def entries() -> list[str]:
    """The messages and situations of the page."""
    return [f"{quoted}{text}" for quoted, text, _ in ENTRY.findall(PAGE.read_text())]


def stale(package: Path) -> list[str]:
    """The messages of the page that no text of the package begins with."""
    written = texts(package)
    quoted = [entry[1:] for entry in entries() if entry.startswith("`")]
    return [entry for entry in quoted if not any(text.startswith(entry) for text in written)]
