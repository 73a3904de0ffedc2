"""A rank that another launcher started joins; what a rank sees of its job is one process."""

from __future__ import annotations

import socket

import pytest

from tests.support.cli import end_all, fork_cli, run_cli, run_python, start_cli
from tests.support.ports import free_port

pytestmark = pytest.mark.slow

SHOW = (
    "import autoddp, os, sys, torch.distributed as dist\n"
    "print(autoddp.rank(), autoddp.world_size(), dist.is_initialized(), sys.argv[1:], "
    "sorted(k for k in os.environ if k in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_ADDR', "
    "'NODE_RANK', 'GLOO_SOCKET_IFNAME') or k.startswith('TORCHELASTIC')))\n"
)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "s.py"
    path.write_text(SHOW)
    return path


def by_hand(path, size, more=None):
    """`autoddp run` as each rank of a job that nobody's agent hosts the store of."""
    job = {
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    ended = end_all(
        start_cli(
            *("run", path, "x"),
            folder=path.parent,
            logs=path.parent / f"log{rank}",
            env=job | {"RANK": str(rank), "LOCAL_RANK": str(rank)} | (more or {}),
        )
        for rank in range(size)
    )
    return [(done.out, done.err, done.rc) for done in ended]


def test_a_rank_sees_one_process(script):
    assert fork_cli("run", "-n", 2, script, "a").out == "0 2 False ['a'] []\n"


def test_under_torchrun_it_joins(script):
    done = run_python(
        *("-m", "torch.distributed.run", "--nproc-per-node", 2),
        *("-m", "autoddp", "run", "-n", 7, script, "--help"),
    )
    assert done.rc == 0, done.err
    assert done.out == "0 2 False ['--help'] []\n"
    assert done.ours == ["[autoddp] 2 ranks on 1 node, gloo (no GPU here), global view"]


def test_by_hand_rank_0_hosts_the_store_to_the_end(tmp_path):
    path = tmp_path / "s.py"
    path.write_text("import autoddp, time\ntime.sleep(autoddp.rank())\nprint(autoddp.rank())\n")
    (out, err, rc), (out1, err1, rc1) = by_hand(path, 2)
    assert (rc, rc1) == (0, 0), err + err1
    assert (out, out1) == ("0\n", "")


def test_a_joined_rank_that_fails_alone_is_named(tmp_path):
    path = tmp_path / "s.py"
    path.write_text("import autoddp, sys\nif autoddp.rank(): raise ValueError('only me')\n")
    (_, err, rc), (_, err1, rc1) = by_hand(path, 2, more={"TMPDIR": str(tmp_path)})
    assert (rc, rc1) == (0, 1), err + err1
    assert "[autoddp] rank 1 ended with exit code 1; the end of its log " in err1
    assert err1.endswith("ValueError: only me\n")


def test_what_a_launcher_gives_wrongly_is_one_line(script):
    # a rank of a launcher's starts anew, to hash text alike
    done = run_cli("run", "-n", 2, script, env={"RANK": "0"})
    assert (done.rc, done.out, done.err.count("\n")) == (2, "", 1)
    missing = "WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_PORT, MASTER_ADDR not set"
    assert missing in done.err
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    with socket.create_server(("", 0)) as other:
        port = str(other.getsockname()[1])
        rank |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        done = run_cli("run", script, env=rank)
    assert (done.rc, done.out, done.err.count("\n")) == (2, "", 1)
    assert f"MASTER_PORT is {port}, which cannot be used (Address already in use)" in done.err


def test_in_the_local_view_the_environment_is_torchruns(script):
    done = fork_cli("run", "-n", 2, "--view", "local", script)
    assert done.rc == 0, done.err
    assert "'RANK', " in done.out
    assert done.out.startswith("0 2 ")


def test_a_disabled_feature_is_left_out_and_that_is_said(script):
    done = fork_cli("run", "-n", 2, "--disable", "loaders,modules,local-view", script)
    assert done.rc == 0
    assert done.ours[1:3] == [
        "[autoddp] --disable loaders: every rank loads whole batches",
        "[autoddp] --disable modules: a batch that was cut by hand is computed whole, on every "
        "rank",
    ]


def test_children_start_nothing(tmp_path):
    path = tmp_path / "s.py"
    path.write_text(
        "import os, subprocess, sys\n"
        "if 'child' in sys.argv:\n    import autoddp\n    print(autoddp.world_size())\n"
        "else:\n"
        "    print(sorted(k for k in os.environ if k.startswith('AUTODDP')))\n"
        "    print(subprocess.run([sys.executable, __file__, 'child'], "
        "capture_output=True, text=True).stdout)\n"
    )
    done = fork_cli("run", "-n", 2, path)
    assert (done.rc, done.out) == (0, "['AUTODDP_PLACEMENT']\n1\n\n"), done.err
