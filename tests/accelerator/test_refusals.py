"""What the simulated accelerator's backend refuses, as NCCL does; and what of it a user is told."""

from __future__ import annotations

import pytest

from tests.accelerator import jobs

PAIR = """
import os, sys, torch, torch.distributed as dist
from multiprocessing import Process

def rank(number, folder):
    os.environ["SIMULATED_VISIBLE_DEVICES"] = SHOWN[number]
    store = dist.FileStore(folder + "/store", 2)
    dist.init_process_group("cpu:gloo,simulated:simccl", store=store, rank=number, world_size=2)
    pg, D = dist.group.WORLD, "simulated"
    try:
        act(pg, number, D)
        if not number:
            print(torch.simulated.native.collectives())
    except RuntimeError as error:
        if not number:
            print(error)
    sys.stdout.flush()
    os._exit(0)

SHOWN = ["0", "1"]
"""
END = """
ranks = [Process(target=rank, args=(n, os.getcwd())) for n in range(2)]
for each in ranks: each.start()
for each in ranks: each.join(30)
print([each.exitcode for each in ranks])
"""
CASES = {
    "sums": ("pg.allreduce([torch.ones(3, device=D)]).wait()", "['allreduce of Float[3] on 0']"),
    "dense": ("pg.allreduce([torch.ones(4, 4, device=D)[:, ::2]])", "Tensors must be contiguous"),
    "cpu": (
        "pg._get_backend(torch.device(D)).allreduce([torch.ones(3)])",
        "must be on the accelerator",
    ),
    "two": (
        "SHOWN; pg.allreduce([torch.ones(3, device=D)])",
        "Duplicate device detected: rank 0 and rank 1",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_refused(name, tmp_path):
    act, words = CASES[name]
    shown = '["0", "0"]' if name == "two" else '["0", "1"]'
    text = PAIR + f"SHOWN = {shown}\ndef act(pg, number, D):\n    {act}\n" + END
    run = jobs.alone(jobs.script(text, tmp_path), tmp_path)
    assert words in run.out, run.out + run.err


def test_sequences_that_differ_end_the_job(tmp_path):
    act = (
        "pg.allreduce([torch.ones(3 + number, device=D)]).wait()\n"
        "    torch.accelerator.synchronize()"
    )
    text = PAIR + f"def act(pg, number, D):\n    {act}\n" + END
    run = jobs.alone(jobs.script(text, tmp_path), tmp_path)
    assert "-6" in run.out, run.out
    assert "is in allreduce of Float[" in run.err


def test_a_collective_comes_back_at_once_and_a_value_waits_for_it(tmp_path):
    act = """
    import time
    x, y = torch.ones(1, device=D), torch.ones(1, device=D)
    began = time.monotonic()
    if number: time.sleep(2)
    pg.allreduce([x]).wait()
    pg.allreduce([y]).wait()
    ahead, mark = time.monotonic() - began, torch.Event(D)
    mark.record()
    told = mark.query()
    torch.accelerator.synchronize()
    if not number: print(told, mark.query(), ahead < 1.5 or ahead, time.monotonic() - began > 1.5)
"""
    warm = "    pg.allreduce([torch.ones(1, device=D)]).wait()\n    torch.accelerator.synchronize()"
    text = PAIR + f"def act(pg, number, D):\n{warm}\n{act}\n" + END
    run = jobs.alone(jobs.script(text, tmp_path), tmp_path)
    assert run.out.startswith("False True True True"), run.out + run.err


NAMED = """
import torch
torch.manual_seed(0)
x = torch.ones(2, device="simulated:1")
"""


@pytest.mark.parametrize(
    ("options", "devices", "words"),
    [
        (
            ("--backend", "nccl"),
            "4",
            "--backend is nccl, which needs a device of its own for each of 2 ranks, but this "
            "machine shows 4 simulated devices (simccl); use --backend gloo",
        ),
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
    ids=["another", "shared", "many"],
)
def test_one_line_for_what_cannot_be(options, devices, words, tmp_path):
    run = jobs.ranks(jobs.script(NAMED, tmp_path), tmp_path, *options, SIMULATED_DEVICES=devices)
    lines = [line for line in run.err.splitlines() if line]
    assert run.code == 2
    assert len(lines) == 1, run.err
    assert words in lines[0]


def test_a_device_that_the_rank_lacks_is_named(tmp_path):
    run = jobs.ranks(jobs.script(NAMED, tmp_path), tmp_path)
    assert run.code == 1
    assert "invalid device ordinal" in run.err
    line = "[autoddp] this rank sees 1 simulated device; --gpus-per-rank gives each rank several"
    assert run.err.splitlines().count(line) == 1
