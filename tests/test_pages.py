"""Generated parts of docs/ are up to date, and the pages can be built."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest

from tests import pages, recording
from tests.support import messages
from tests.support.cli import ROOT, environ
from tests.test_examples import TASKS
from tests.test_readme import (
    BLOCK,
    PAGES,
    README,
    commands,
    console,
    end,
    in_order,
    shape,
    start,
)

__all__ = ["console", "start"]  # fixtures

PACKAGE = Path(ROOT) / "autoddp"
WIDEST, LONGEST, WORDS = 100, 100, 12_000


@pytest.mark.parametrize("name", pages.made())
def test_generated_files_are_up_to_date(name):
    """`python -m tests.pages` writes them."""
    assert (pages.DOCS / name).read_text() == pages.made()[name]


def test_messages_of_the_pages_are_in_the_code():
    assert len(messages.entries()) == 15
    assert messages.stale(PACKAGE) == []


def test_readme_is_short():
    lines = README.splitlines()
    assert len(lines) <= LONGEST
    prose = BLOCK.sub("", README).splitlines()
    assert [line for line in prose if len(line) > WIDEST] == []


def test_the_pages_are_short():
    """Without the table of libraries, which a run writes."""
    prose = [page for name, page in PAGES.items() if name != "libraries.md"]
    assert sum(len(page.split()) for page in (README, *prose)) <= WORDS
    assert len((Path(ROOT) / "CHANGELOG.md").read_text().splitlines()) <= 80


def links(text: str) -> set[tuple[str, str]]:
    """The files that a page links to, and the headings in them."""
    found = re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", text)
    return {(name, place) for name, place in found}


def test_links_of_readme_exist():
    """`mkdocs` checks the links within docs/."""
    for name, place in links(README):
        path = Path(ROOT) / name
        assert path.exists(), name
        headings = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.M) if place else []
        assert not place or place in {h.lower().replace(" ", "-") for h in headings}
    assert {f"docs/{name}" for name in PAGES} <= {name for name, _ in links(README)}


def test_the_srun_command_is_in_the_readme_of_the_examples():
    """`test_clusters.py` runs that one under SLURM."""
    lines = [line.split() for line in commands() if line.startswith("srun ")]
    assert len(lines) == 1
    assert all(line in TASKS for line in lines)


@pytest.mark.cluster
def test_mpirun(start):
    if shutil.which("mpirun") is None:
        pytest.skip("needs Open MPI: apt-get install openmpi-bin")
    (line,) = [line for line in commands() if line.startswith("mpirun ")]
    as_root = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
    line = f"{as_root} OMPI_MCA_rmaps_base_oversubscribe=1 {line} --epochs 1"
    ((_, err),) = end(start(line))
    assert "[autoddp] 2 ranks on 1 node" in err


@pytest.mark.slow
def test_the_notebook_prints_what_the_page_shows(tmp_path):
    """Execute the cells of the page on real ranks."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    blocks = BLOCK.findall(PAGES["notebooks.md"])
    cells = [nbformat.v4.new_code_cell(text) for kind, text in blocks if kind == "ipython"]
    (shown,) = [text for kind, text in blocks if kind == "text"]
    notebook = nbformat.v4.new_notebook(cells=cells)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, resources=resources).execute(env=environ())
    (outputs,) = [cell["outputs"] for cell in cells if cell["source"].startswith("%%autoddp")]
    printed = {
        name: [
            shape(line) for o in outputs if o.get("name") == name for line in o.text.splitlines()
        ]
        for name in ("stdout", "stderr")
    }
    ours = [shape(line) for line in shown.splitlines() if line.startswith("[autoddp]")]
    in_order(ours, printed["stderr"])
    in_order([s for s in map(shape, shown.splitlines()) if s not in ours], printed["stdout"])


def test_quoted_messages_are_in_the_code():
    """Messages that no command of a page prints, such as those of nodes that wait."""
    written = [
        re.compile(re.escape(text).replace("…", ".*"))
        for text in messages.texts(PACKAGE)
        if len(re.findall("[a-z]", text)) >= messages.LEAST
    ]
    quoted = [
        text
        for page in ("machines.md", "guarantees.md")
        for kind, text in BLOCK.findall(PAGES[page])
        if kind == "text"
    ]
    lines = [line.removeprefix("[autoddp] ") for text in quoted for line in text.splitlines()]
    assert len(lines) >= 4
    for line in lines:
        assert any(text.match(line) for text in written), line


def test_the_recording_shows_the_same_digits_twice():
    text = recording.FILE.read_text()
    lines = recording.shown(text)
    assert recording.drawn(lines) == text
    plain, ranks = (lines.index(f"$ {command}") for command in recording.COMMANDS)
    theirs = [line for line in lines[ranks + 1 :] if not line.startswith("[autoddp]")]
    assert lines[plain + 1 : ranks] == theirs
    assert len(theirs) == 6


@pytest.mark.slow
def test_the_recording_is_what_a_terminal_shows(tmp_path, monkeypatch):
    """With smaller scans, fewer lines of epochs, and another last line of a fast run."""
    small = tmp_path / "small" / recording.SCRIPT
    small.parent.mkdir(parents=True)
    text = (Path(ROOT) / recording.SCRIPT).read_text()
    small.write_text(text.replace("size=300", "size=64"))
    assert small.read_text() != text
    monkeypatch.setattr(recording, "ROOT", tmp_path / "small")
    short = [line.replace("--epochs 4", "--epochs 1") for line in recording.COMMANDS]
    monkeypatch.setattr(recording, "COMMANDS", short)
    want, seen = (
        [text for text, _ in groupby(map(shape, lines))]
        for lines in (recording.shown(recording.FILE.read_text()), recording.record(tmp_path))
    )
    assert seen[: len(want) - 1] == want[:-1]
    (account,) = seen[len(want) - 1 :] or [want[-1]]
    assert account.partition(":")[0] == want[-1].partition(":")[0]


@pytest.mark.slow
def test_the_pages_are_built(tmp_path):
    """With the command of developing.md; the built pages load nothing from other servers."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    (line,) = [line for line in commands() if line.startswith("mkdocs ")]
    done = subprocess.run(
        [sys.executable, "-m", *line.split(), "--site-dir", tmp_path],
        cwd=ROOT,
        env=environ({"NO_MKDOCS_2_WARNING": "1"}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    built = {path.stem for path in tmp_path.glob("*.html")}
    assert {Path(name).stem for name in PAGES} <= built
    for path in tmp_path.glob("*.html"):
        asked = re.findall(
            r"<(?:link|script|img)[^>]*(?:href|src)=\"?(https?:[^\" >]*)", path.read_text()
        )
        assert asked == [], path.name
    assert not list(tmp_path.rglob("*.py"))


def test_the_pages_are_in_the_navigation():
    text = (Path(ROOT) / "mkdocs.yml").read_text()
    named = re.findall(r": ([\w-]+\.md)$", text, flags=re.M)
    assert sorted(named) == sorted(PAGES)
