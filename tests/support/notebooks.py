"""Execute the cells of a notebook in a real kernel, from a process of their own.

The client's event loops and sockets stay in it: `python -m tests.support.notebooks FOLDER` reads
cells as JSON, and writes what each has shown.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from dataclasses import asdict, dataclass, field

import pytest

from autoddp import torch_internals
from tests.support.cli import ROOT, environ

forks = pytest.mark.skipif(
    torch_internals.VERSION < (2, 7),
    reason="its OpenMP may keep its threads, so that a kernel cannot be forked, and says so",
)


@dataclass
class Executed:
    """What a cell showed: its streams, its values and figures, and the error that ended it."""

    out: str = ""
    err: str = ""
    shown: list[str] = field(default_factory=list)
    error: str = ""

    @property
    def ours(self) -> list[str]:
        """The lines of ours on stderr."""
        return [line for line in self.err.splitlines() if line.startswith("[autoddp]")]

    def add(self, output) -> None:
        """Add an output of the cell."""
        if output.output_type == "stream" and output.name == "stdout":
            self.out += output.text
        elif output.output_type == "stream":
            self.err += output.text
        elif output.output_type == "error":
            self.error = f"{output.ename}: {output.evalue}"
        else:
            self.shown.append(output.data["text/plain"])


def execute(folder, *cells, **env) -> list[Executed]:
    """Execute cells in a kernel of their own, in `folder`; nothing comes after a dead kernel."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.notebooks", str(folder)],
        input=json.dumps(cells),
        env=environ({"IPYTHONDIR": str(folder / "ipython"), **env}),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [Executed(**shown) for shown in json.loads(done.stdout)]


def main(folder: str) -> None:
    """Be that process."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import DeadKernelError

    cells = [nbformat.v4.new_code_cell(text) for text in json.load(sys.stdin)]
    where = {"metadata": {"path": folder}}
    notebook = nbformat.v4.new_notebook(cells=cells)
    client = NotebookClient(
        notebook, kernel_name="python3", timeout=120, allow_errors=True, resources=where
    )
    with contextlib.suppress(DeadKernelError):
        client.execute()
    found = [Executed() for _ in notebook.cells]
    for executed, cell in zip(found, notebook.cells, strict=True):
        for output in cell.outputs:
            executed.add(output)
    json.dump([asdict(executed) for executed in found], sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
