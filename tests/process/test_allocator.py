"""A rank keeps the memory that its tensors have left, unless the user says what is kept."""

from __future__ import annotations

import pytest

from tests.support.cli import fork_cli, run_cli, run_python

pytestmark = pytest.mark.slow

# a new tensor of 40 MB, which are 10,000 pages: such a one is the system's own by default
PAGES = """
import resource, torch

torch.set_num_threads(1)

def step():
    return x + 1

x = torch.randn(10_000_000)
for _ in range(5):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(30):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 30, flush=True)
"""
HELD = """
import torch
from autoddp.process import allocator

def held():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))

allocator.keep_memory({})
few = held()
tensors = [torch.ones(5_000_000) for _ in range(20)]
del tensors
kept = held() - few
allocator.give_back()
print(kept, held() - few)
"""


@pytest.fixture
def pages(tmp_path):
    path = tmp_path / "s.py"
    path.write_text(PAGES)
    return path


def test_a_ranks_tensors_come_to_pages_that_it_has(pages):
    plain = run_python(pages)
    assert int(plain.out) > 9000  # what this is about: each has to find all of its pages
    ranks = fork_cli("run", "--nproc", "2", pages)
    assert ranks.rc == 0, ranks.err
    assert int(ranks.out) < 5000  # as a rule none, but a block may come to lie elsewhere


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=1048576"),
    ],
)
def test_what_the_user_has_set_stays(pages, name, value):
    ranks = run_cli("run", "--nproc", "2", pages, env={name: value})
    assert ranks.rc == 0, ranks.err
    assert int(ranks.out) > 9000


def test_what_is_kept_can_be_given_back():
    kept, left = run_python("-c", HELD).out.split()
    assert int(kept) > 300  # of 400 MB
    assert int(left) < 100
