"""Generate the parts of docs/ that come from the code: `python -m tests.pages`.

These are the table of options (options.md) and the picture of the quickstart. The command also
lists messages in troubleshooting.md that the code no longer contains.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from tests.support import messages, option_table
from tests.support.cli import ROOT

DOCS = Path(ROOT) / "docs"
TABLE = r"(\|.*\n)+"
OPTION_TABLE = re.compile(r'(?<=^<div class="cards" markdown>\n\n)' + TABLE, flags=re.M)


def picture() -> str:
    """The picture of one batch on four ranks."""
    spec = importlib.util.spec_from_file_location("picture", DOCS / "picture.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.picture()


def options(page: str) -> str:
    """The page of options with a table that is up to date."""
    return OPTION_TABLE.sub(lambda _: option_table.lines(), page)


def made() -> dict[str, str]:
    """The generated files of docs/ with their text."""
    return {
        "options.md": options((DOCS / "options.md").read_text()),
        "picture.svg": picture(),
    }


if __name__ == "__main__":
    for name, text in made().items():
        (DOCS / name).write_text(text)
    for entry in messages.stale(Path(ROOT) / "autoddp"):
        print(f"troubleshooting.md has a message that is not in the code: {entry}")
