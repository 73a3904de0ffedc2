"""Variables of a launcher, or of several at once: a place in a job, or one line that names one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoddp import launch
from autoddp.comm.world import World, hide
from tests.support.fuzz import NUMERALS, WORDS, examples, number, refusal

pytestmark = pytest.mark.slow

TORCHRUN = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
)
OTHERS = (
    *("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_NUM_TASKS"),
    *(
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "PMI_RANK",
        "PMI_SIZE",
    ),
)
HOSTS = st.sampled_from(
    ["localhost", "10.0.0.1", "::1", "node-0.cluster", "a..b", ".", "x" * 64, "a b", ""]
)


@st.composite
def jobs(draw):
    """The variables of a rank of a job that there can be, of nodes of any sizes."""
    sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=8))
    node = draw(st.integers(0, len(sizes) - 1))
    local = draw(st.integers(0, sizes[node] - 1))
    numbers = (sum(sizes[:node]) + local, sum(sizes), local, sizes[node], node, len(sizes))
    port = str(draw(st.integers(1, 65535)))
    return dict(zip(TORCHRUN, map(str, numbers), strict=True)) | {
        "MASTER_ADDR": "node0",
        "MASTER_PORT": port,
    }


@examples(100)
@given(jobs(), st.dictionaries(st.sampled_from(OTHERS), NUMERALS), st.booleans())
def test_a_job_is_read_whatever_else_is_set(job, others, bare):
    if bare:  # what others than torchrun set
        job = {name: value for name, value in job.items() if not name.startswith("GROUP")}
    world = World.read(others | job)
    read = (world.rank, world.world_size, world.local_rank, world.local_world_size, world.node_rank)
    assert read == tuple(int(job.get(name, "0")) for name in TORCHRUN[:5])
    assert launch.launched(others | job)
    assert not launch.launched(others)
    left = others | job
    hidden = hide(left)
    assert not set(job) & set(left)
    assert hidden | left == others | job


@examples(150)
@given(
    jobs(),
    st.dictionaries(
        st.sampled_from(TORCHRUN),
        st.none() | NUMERALS | st.integers(0, 9).map(str),
        min_size=1,
        max_size=3,
    ),
    st.none()
    | st.fixed_dictionaries({}, optional={"MASTER_ADDR": HOSTS | WORDS, "MASTER_PORT": NUMERALS}),
)
def test_variables_that_contradict_are_refused(job, changes, master):
    environ = {k: v for k, v in (job | changes | (master or {})).items() if v is not None}
    world, said = refusal(lambda: World.read(environ))
    needed = set(TORCHRUN[:4]) | {"MASTER_ADDR", "MASTER_PORT"}
    read = {name: number(text) for name, text in environ.items() if name != "MASTER_ADDR"}
    if said is not None:
        named = [name for name in (*TORCHRUN, "MASTER_ADDR", "MASTER_PORT") if name in said]
        assert named, said
        told = [
            n for n in named if n not in environ or environ[n] in said or repr(environ[n]) in said
        ]
        assert told or any(str(read.get(name)) in said for name in named), f"no value in {said}"
        assert needed - set(environ) or not _can_be(read, environ["MASTER_ADDR"]), said
        return
    assert _can_be(read, environ["MASTER_ADDR"])
    assert world.master_port == read["MASTER_PORT"]


def _can_be(read, host):
    """Whether nodes can be found, of one rank at least each, that these ranks lie on."""
    if None in read.values() or max(map(abs, read.values())) >= 2**31:
        return False
    size, here = read["WORLD_SIZE"], read["LOCAL_WORLD_SIZE"]
    nodes = read.get("GROUP_WORLD_SIZE")
    elsewhere = size - here
    fits = elsewhere >= 0 and (nodes is None or nodes - 1 <= elsewhere)
    place = read.get("GROUP_RANK", 0)
    known = nodes if nodes is not None else elsewhere + 1
    ranks = 0 <= read["RANK"] < size and 0 <= read["LOCAL_RANK"] < here and 0 <= place < known
    bad = not host or any(not c.isprintable() or c == " " for c in host) or not _has_labels(host)
    return fits and ranks and 1 <= read["MASTER_PORT"] <= 65535 and not bad


def _has_labels(host):
    try:
        return bool(host.encode("idna"))
    except UnicodeError:
        return False
