"""Devices that a job cannot have: one line says so."""

from __future__ import annotations

from tests.accelerator import jobs


def test_one_line_for_what_cannot_be(tmp_path):
    path = jobs.script("import torch", tmp_path)
    run = jobs.ranks(path, tmp_path, "--backend", "native", SIMULATED_DEVICES="1")
    lines = [line for line in run.err.splitlines() if line]
    assert run.code == 2
    assert len(lines) == 1, run.err
    assert (
        "--backend is native, but 2 ranks share 1 simulated device; use --backend gloo" in lines[0]
    )
