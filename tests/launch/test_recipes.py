"""What docs/machines.md has for schedulers is taken by the real tools."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.cli import ROOT

PAGE = (Path(ROOT) / "docs" / "machines.md").read_text()


def recipe(begins: str) -> str:
    """The block of the page that begins so."""
    return next(
        text for text in re.findall(r"```\w+\n(.*?)```", PAGE, re.S) if text.startswith(begins)
    )


def test_a_manifest_is_yaml():
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load(recipe("apiVersion"))
    for spec in job["spec"]["pytorchReplicaSpecs"].values():
        (container,) = spec["template"]["spec"]["containers"]
        assert container["name"] == "pytorch"
        assert container["command"] == ["autoddp", "run", "--nproc", "4", "train.py"]


@pytest.mark.parametrize("begins", ["#!/bin/bash", "mpirun -n 8", "TORCH_DISABLE"])
def test_what_a_shell_reads_is_right(begins):
    assert (
        subprocess.run(["bash", "-n"], input=recipe(begins), text=True, check=False).returncode == 0
    )
