"""The texts of our errors, from the code, and their entries in docs/troubleshooting.md.

`python -m tests.support.messages [FOLDER]` names the texts of a package that have no entry, and
the entries that no text begins with. An entry may be a text's beginning; what is filled in is "…"
in both.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from autoddp import errors
from tests.support.cli import ROOT

PAGE = Path(ROOT) / "docs" / "troubleshooting.md"
ENTRY = re.compile(r"^(`+) ?(.+?) ?\1\n:   (.+)$", flags=re.M)
CLASSES = {name for name, kind in vars(errors).items() if isinstance(kind, type)}
LEAST = 8  # letters of an entry that may be the beginning of several texts

# where a text is put together elsewhere: what was given to the exception, and how the texts begin
ELSEWHERE: dict[tuple[str, str], tuple[str, ...]] = {
    ("cli/__init__.py", "hints.wanted(arguments) or described(error, arguments)"): (
        "… is no command of autoddp; to run it: autoddp run …",
        "…; see … --help",
    ),
    ("comm/in_order.py", "text"): ("rank … is in «…» where rank …",),
    ("comm/in_order.py", "message[1:].decode()"): ("rank … is in «…» where rank …",),
    ("comm/in_order.py", "parted(self.rank, place, 0, theirs)"): ("rank … is in «…» where rank …",),
    ("process/meeting.py", "refused"): (
        "… is … on … … and … on … 0; start all …",
        "rank … on … computes …, rank 0 on …",
    ),
    ("process/worker.py", "own_ddp.twice(script.name, own.line, world.world_size)"): (
        "… starts its ranks itself (…), but another launcher",
    ),
    ("training/loading/rows.py", "_other(tree_leaves(batch))"): (
        "a batch of the DataLoader holds a …",
        "a batch of the DataLoader holds numbers of another type",
    ),
    ("view/dispatch.py", "refused(args[0].shape, func._schema.name.rpartition(':')[2])"): (
        "… gives a batch of shape … … in place",
    ),
    ("view/rules/shapes.py", "refused(me.shape, func.__name__)"): (
        "… gives a batch of shape … … in place",
    ),
    ("view/rules/shapes.py", "refused(me.shape, name)"): ("… gives a batch of shape … … in place",),
}


def template(node: ast.AST) -> str | None:
    """A string with "…" for what is filled in; None if its beginning is not written there."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) or "…" for part in node.values)
    if isinstance(node, ast.BinOp) and (left := template(node.left)) is not None:
        return left + (template(node.right) or "…")
    return None


def raised(package: Path) -> Iterator[tuple[str, ast.expr]]:
    """What our exceptions are made of: the file, and the text's expression."""
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args and name(node.func) in CLASSES:
                yield str(path.relative_to(package)), node.args[0]


def name(function: ast.expr) -> str:
    """The last part of a dotted name."""
    return getattr(function, "attr", getattr(function, "id", ""))


def texts(package: Path) -> list[str]:
    """How the text of each error begins, as far as it is written down."""
    found: set[str] = set()
    for file, node in raised(package):
        said, given = template(node), ast.unparse(node)
        unknown = f"{file}: {given} is put together elsewhere; add it to tests/support/messages.py"
        found.update([said] if said else ELSEWHERE.get((file, given), [unknown]))
    return sorted(found)


def entries() -> dict[str, str]:
    """The page's entries: the beginning of a text, and what is said of it."""
    return {text: said for _, text, said in ENTRY.findall(PAGE.read_text())}


def begins(text: str, entry: str) -> bool:
    """Whether an entry is the text, or says enough of its beginning."""
    return text == entry or (len(re.findall("[A-Za-z]", entry)) >= LEAST and text.startswith(entry))


def missing(package: Path) -> list[str]:
    """The texts that have no entry."""
    known = entries()
    return [text for text in texts(package) if not any(begins(text, entry) for entry in known)]


def stale(package: Path) -> list[str]:
    """The entries that no text of the package begins with."""
    trees = (ast.parse(path.read_text()) for path in package.rglob("*.py"))
    written = {said for tree in trees for node in ast.walk(tree) if (said := template(node))}
    return [entry for entry in entries() if not any(begins(text, entry) for text in written)]


if __name__ == "__main__":
    folder = Path(*sys.argv[1:]) if sys.argv[1:] else Path(ROOT) / "autoddp"
    for text in missing(folder):
        print(f"no entry: {text}")
    for entry in stale(folder):
        print(f"no text:  {entry}")
