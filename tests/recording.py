"""Record docs/terminal.svg: the same example with `python` and with `autoddp run`.

`python -m tests.recording` runs both commands in a terminal and draws their output.
"""

from __future__ import annotations

import html
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.cli import ROOT, environ

FILE = Path(ROOT) / "docs" / "terminal.svg"
SCRIPT = "examples/single_gpu/scans.py"
COMMANDS = (f"python {SCRIPT} --epochs 4", f"autoddp run --nproc 2 {SCRIPT} --epochs 4")
COLUMNS, WIDE, HIGH, TOP, LEFT = 80, 8, 20, 44, 16  # letters of a line; pixels of one, and margins
PAPER, INK, OURS, TYPED = "#1c2128", "#d7dde3", "#7fb4ff", "#ffffff"
LINE = re.compile(r"<text[^>]*>(.*?)</text>")


def record(folder: Path) -> list[str]:
    """The commands, each with `$` before it, and the lines that they print."""
    place = folder / SCRIPT
    place.parent.mkdir(parents=True)
    shutil.copy(Path(ROOT) / SCRIPT, place)
    return [line for command in COMMANDS for line in (f"$ {command}", *printed(command, folder))]


def printed(command: str, folder: Path) -> list[str]:
    """The lines that a command writes to a terminal."""
    name, *rest = command.split()
    called = [sys.executable, *(["-m", name] if name != "python" else []), *rest]
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        called, cwd=folder, env=environ(), stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    seen = b""
    try:
        while data := os.read(screen, 65536):
            seen += data
    except OSError:  # every process has closed the terminal
        pass
    os.close(screen)
    assert process.wait(60) == 0, seen.decode()
    return seen.decode().replace("\r\n", "\n").splitlines()


def folded(line: str) -> list[str]:
    """A line as a terminal breaks it."""
    return [line[at : at + COLUMNS] for at in range(0, len(line), COLUMNS)] or [""]


def drawn(lines: list[str]) -> str:
    """The picture of a terminal with these lines."""
    parts, y = [], TOP
    for line in lines:
        ink = TYPED if line.startswith("$ ") else OURS if line.startswith("[autoddp]") else INK
        rows = folded(line)
        spans = (
            f'<tspan x="{LEFT}" y="{y + HIGH * n}">{html.escape(row, quote=False)}</tspan>'
            for n, row in enumerate(rows)
        )
        parts.append(f'<text fill="{ink}" xml:space="preserve">{"".join(spans)}</text>')
        y += HIGH * len(rows)
    wide, high = COLUMNS * WIDE + 2 * LEFT, y
    lights = "".join(
        f'<circle cx="{LEFT + 5 + 18 * n}" cy="16" r="5" fill="{colour}"/>'
        for n, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" '
        'font-family="ui-monospace, DejaVu Sans Mono, Menlo, monospace" font-size="13">'
    )
    paper = f'<rect width="{wide}" height="{high}" rx="8" fill="{PAPER}"/>'
    return "\n".join([head, paper, lights, *parts, "</svg>"]) + "\n"


def shown(picture: str) -> list[str]:
    """The lines of a picture."""
    return [html.unescape(re.sub("<[^>]*>", "", text)) for text in LINE.findall(picture)]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        FILE.write_text(drawn(record(Path(name))))
