"""A rank keeps the memory that its tensors have left, unless the user says what is kept."""

from __future__ import annotations

import pytest

from autoddp.torch_internals import VERSION
from tests.support.cli import fork_cli, run_cli, run_python

pytestmark = pytest.mark.slow

# a new tensor of 40 MB, which are 10,000 pages: such a one is the system's own by default
PAGES = """
import os, resource, sys, torch

torch.set_num_threads(1)

def step():
    return x + 1

x = torch.randn(10_000_000)
if "child" in sys.argv and (child := os.fork()):
    os.waitpid(child, 0)
    sys.exit()
for _ in range(5):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(30):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 30, flush=True)
if "child" in sys.argv:
    os._exit(0)
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
DECORATED = """
import autoddp, torch
from autoddp.process import allocator

calls = []
take, give = allocator.keep_memory, allocator.give_back
allocator.keep_memory = lambda environ: calls.append("keep") or take(environ)
allocator.give_back = lambda: calls.append("give back") or give()

@autoddp.distributed(nproc=2)
def main():
    return torch.ones(3).sum().item()

if __name__ == "__main__":
    print(main(), calls)
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
        ("MALLOC_MMAP_THRESHOLD_", "1048576"),
        ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=1048576"),
    ],
)
def test_what_the_user_has_set_stays(pages, name, value):
    ranks = run_cli("run", "--nproc", "2", pages, env={name: value})
    assert ranks.rc == 0, ranks.err
    assert int(ranks.out) > 9000


def test_a_tunable_of_something_else_is_no_setting_of_memory(pages):
    more = {"GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=1024"}
    ranks = run_cli("run", "--nproc", "2", pages, env=more)
    assert int(ranks.out) < 5000, ranks.err


def test_children_keep_no_more_than_any_process(pages):
    child = run_cli("run", "--nproc", "2", pages, "child")
    assert child.rc == 0, child.err
    assert all(int(line) > 9000 for line in child.out.split()), child.out
    assert child.out


def test_what_is_kept_can_be_given_back():
    kept, left = run_python("-c", HELD).out.split()
    assert int(kept) > 300  # of 400 MB
    assert int(left) < 100


@pytest.mark.skipif(VERSION < (2, 7), reason="with torch 2.6 this process cannot be forked")
def test_a_decorated_function_gives_back_what_it_kept(tmp_path):
    path = tmp_path / "s.py"
    path.write_text(DECORATED)
    done = run_python(path)
    assert done.out == "3.0 ['keep', 'give back']\n", done.err
