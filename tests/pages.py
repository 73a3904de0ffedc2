"""What in docs/ is made from the code: `python -m tests.pages` writes it.

The tables of options and of features (options.md), the list of patches (patches.md) and the picture
of the quickstart; then it names what troubleshooting.md has to be given by hand.
"""

from __future__ import annotations

import importlib.util
import re
from collections import Counter, defaultdict
from pathlib import Path

from autoddp.patching import Patch
from autoddp.process.features import FEATURES
from tests.support import messages, option_table
from tests.support.cli import ROOT

DOCS = Path(ROOT) / "docs"
FEATURE_HEAD = "| feature | without it |\n|---|---|\n"
TABLE = r"(\|.*\n)+"
OPTION_TABLE = re.compile(r'(?<=^<div class="cards" markdown>\n\n)' + TABLE, flags=re.M)
FEATURE_TABLE = re.compile(re.escape(FEATURE_HEAD) + TABLE)
PATCH_HEAD = "| replaced | why |\n|---|---|\n"
PATCHES = """\
# Patches

A **patch** replaces one function, in the ranks' processes alone and for the time of a job; a \
**feature** is a set of patches that keep one promise. This page is what `autoddp patches` prints, \
made from the code. With one rank nothing is replaced, and `--disable NAME` leaves a feature out. \
A patch of a library that is not installed does nothing.
"""


def features() -> str:
    """A line for each feature: what is so without it."""
    return FEATURE_HEAD + "".join(f"| `{f.name}` | {f.without} |\n" for f in FEATURES)


def patches() -> str:
    """The page of patches: those of several features first, then a table for each feature."""
    uses = Counter(key for f in FEATURES for key in {(p.targets, p.why) for p in f.patches()})
    shared = [p for f in FEATURES for p in f.patches() if uses[p.targets, p.why] > 1]
    page = PATCHES
    if shared:
        page += f"\n## Of several features\n\n{patch_table(shared)}"
    for feature in FEATURES:
        own = [p for p in feature.patches() if uses[p.targets, p.why] == 1]
        page += f"\n## {feature.name}\n\nWithout it, {feature.without}.\n"
        page += f"\n{patch_table(own)}" if own else "\nIt hooks into torch and replaces nothing.\n"
    return page


def patch_table(found: list[Patch]) -> str:
    """A row for each reason, with all that is replaced for it."""
    targets: dict[str, dict[str, None]] = defaultdict(dict)
    for item in found:
        targets[item.why].update(dict.fromkeys(item.targets))
    rows = (f"| {', '.join(f'`{t}`' for t in some)} | {why} |\n" for why, some in targets.items())
    return PATCH_HEAD + "".join(rows)


def picture() -> str:
    """The picture of one batch on four ranks."""
    spec = importlib.util.spec_from_file_location("picture", DOCS / "picture.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.picture()


def options(page: str) -> str:
    """The page of options with its tables as they are to be."""
    page = OPTION_TABLE.sub(lambda _: option_table.lines(), page)
    return FEATURE_TABLE.sub(lambda _: features(), page)


def made() -> dict[str, str]:
    """The files of docs/ that are made, and their text."""
    return {
        "options.md": options((DOCS / "options.md").read_text()),
        "patches.md": patches(),
        "picture.svg": picture(),
    }


if __name__ == "__main__":
    for name, text in made().items():
        (DOCS / name).write_text(text)
    for text in messages.missing(Path(ROOT) / "autoddp"):
        print(f"troubleshooting.md has no entry: {text}")
    for entry in messages.stale(Path(ROOT) / "autoddp"):
        print(f"troubleshooting.md has an entry that no message begins with: {entry}")
