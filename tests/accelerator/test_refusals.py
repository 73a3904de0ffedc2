"""Devices that a job cannot have: one line says so."""

from __future__ import annotations

import pytest

from tests.accelerator import jobs

NAMED = """
import torch
torch.manual_seed(0)
x = torch.ones(2, device="simulated:1")
"""


@pytest.mark.parametrize(
    ("options", "devices", "words"),
    [
        (
            ("--backend", "native"),
            "1",
            "--backend is native, which needs a device of its own for each of 2 ranks, but this "
            "machine shows 1 simulated device (simccl); use --backend gloo",
        ),
        (
            ("--gpus-per-rank", "3"),
            "4",
            "--gpus-per-rank is 3, which with 2 ranks takes 6 GPUs, but this machine shows 4 "
            "simulated devices; give fewer of either",
        ),
    ],
    ids=["shared", "many"],
)
def test_one_line_for_what_cannot_be(options, devices, words, tmp_path):
    run = jobs.ranks(jobs.script(NAMED, tmp_path), tmp_path, *options, SIMULATED_DEVICES=devices)
    lines = [line for line in run.err.splitlines() if line]
    assert run.code == 2
    assert len(lines) == 1, run.err
    assert words in lines[0]
