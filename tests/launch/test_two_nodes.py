"""Two nodes: two network namespaces that a pair of virtual interfaces connects."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.support.cli import end_all, fork_python, start_cli

pytestmark = pytest.mark.cluster

ADDRESSES = ("10.213.77.1", "10.213.77.2")
PORT = 29611  # the namespaces are the test's own: nobody else is in them


def sh(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(line.split(), capture_output=True, text=True, timeout=20, check=False)


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[str, str]]:
    """The names of the two namespaces."""
    names = tuple(f"autoddp{os.getpid()}n{node}" for node in range(2))
    ends = tuple(f"ad{os.getpid()}e{node}"[:15] for node in range(2))
    try:
        lines = [f"ip netns add {name}" for name in names]
        lines.append(f"ip link add {ends[0]} type veth peer name {ends[1]}")
        for name, end, address in zip(names, ends, ADDRESSES, strict=True):
            lines += [
                f"ip link set {end} netns {name}",
                f"ip -n {name} addr add {address}/24 dev {end}",
                f"ip -n {name} link set {end} up",
                f"ip -n {name} link set lo up",
            ]
        for line in lines:
            try:
                done = sh(line)
            except FileNotFoundError:
                pytest.skip("no ip command: two nodes cannot be made here")
            if done.returncode:
                pytest.skip(f"two nodes cannot be made here: {line}: {done.stderr.strip()}")
        yield names
    finally:
        for name in names:
            if os.path.exists(f"/run/netns/{name}"):
                sh(f"ip netns del {name}")


class Job:
    """`autoddp run` on each of the nodes."""

    def __init__(self, names, folder, *words, nprocs=(2, 1)):
        job = f"--nnodes 2 --master-addr {ADDRESSES[0]} --master-port {PORT}"
        self.nodes = [
            start_cli(
                *f"run -n {nprocs[node]} {job} --node-rank {node}".split(),
                *words,
                folder=folder,
                logs=folder / f"node{node}",
                network=names[node],
            )
            for node in (0, 1)
        ]

    def end(self):
        """What came of each node."""
        return end_all(self.nodes)


def test_a_script_runs_on_both_nodes(nodes, tmp_path):
    script = tmp_path / "s.py"
    script.write_text(
        "import autoddp, os, sys\n"
        "print(autoddp.rank(), autoddp.world_size(), os.environ.get('RANK'), sys.argv)\n"
    )
    first, second = Job(nodes, tmp_path, script).end()
    assert (first.rc, second.rc) == (0, 0), first.err + second.err
    assert first.out == f"0 3 None ['{script}']\n", "rank 0 of the job has its terminal"
    assert second.out == ""
    waiting = f"[autoddp] waiting for 2 nodes at {ADDRESSES[0]}:{PORT}"
    begun = "[autoddp] 3 ranks on 2 nodes, gloo (no GPU here), global view"
    assert (first.ours, second.ours) == ([waiting, begun], [waiting])


def test_a_failed_rank_0_ends_the_job_on_both_nodes(nodes, tmp_path):
    """Rank 0 fails while the other node waits for it."""
    script = tmp_path / "s.py"
    script.write_text(
        "import autoddp, getpass\n"
        "if autoddp.rank() == 0: raise RuntimeError('alone')\n"
        "print(getpass.getuser())\n"
    )
    words = ("--hang-timeout", "0", script)
    first, second = Job(nodes, tmp_path, *words, nprocs=(1, 1)).end()
    assert (first.rc, second.rc) == (1, 1)
    assert "RuntimeError: alone" in first.err
    said = f"[autoddp] rank 0 on node 0 ({socket.gethostname()}) ended with exit code 1"
    assert said in second.err


@pytest.mark.parametrize(
    ("failed", "then"), [(1, "print(getpass.getuser())"), (3, "torch.ones(8).sum().item()")]
)
def test_a_rank_that_fails_alone_is_named(nodes, tmp_path, failed, then):
    """Rank 1 is the first of its node; other ranks of the node notice its end first."""
    script = tmp_path / "s.py"
    script.write_text(
        "import autoddp, getpass, torch, torch.distributed as dist\n"
        "from torch.utils.data import DataLoader\n"
        "print(getpass.getuser())\n"
        "net, sgd = (n := torch.nn.Linear(4, 1)), torch.optim.SGD(n.parameters(), 0.1)\n"
        "for n, x in enumerate(DataLoader(torch.ones(40, 4), 20)):\n"
        f"    if n and autoddp.rank() == {failed}: raise RuntimeError('alone')\n"
        f"    {then}\n"
        "    net(x).mean().backward()\n"
        "    sgd.step()\n"
    )
    first, second = Job(nodes, tmp_path, script, nprocs=(1, 4)).end()
    assert (first.rc, second.rc) == (1, 1), first.err + second.err
    assert f"rank {failed} on node 1" in first.err
    assert "RuntimeError: alone" in second.err
    assert f"[autoddp] rank {failed} ended with exit code 1" in second.err


@pytest.mark.parametrize("nprocs", [(2, 1), (1, 4)], ids=str)
def test_both_nodes_handle_a_signal_at_the_same_step(nodes, tmp_path, nprocs):
    script = tmp_path / "s.py"
    script.write_text(
        "import signal, sys, torch\n"
        "torch.manual_seed(0)\n"
        "net = torch.nn.Linear(4, 1)\n"
        "opt = torch.optim.SGD(net.parameters(), 0.001)\n"
        "def leave(number, frame):\n"
        "    torch.save(step, f'{sys.argv[1]}/step.pt')\n"
        "    print('left at', step, flush=True)\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "data = torch.utils.data.TensorDataset(torch.randn(16, 4), torch.randn(16, 1))\n"
        "for step in range(1 << 40):\n"
        "    for x, y in torch.utils.data.DataLoader(data, batch_size=8):\n"
        "        loss = ((net(x) - y) ** 2).mean()\n"
        "        opt.zero_grad(); loss.backward(); opt.step()\n"
        "    if step == 3: print('ready', flush=True)\n"
    )
    logs = tmp_path / "logs"
    job = Job(nodes, tmp_path, "-q", "--log-dir", logs, script, tmp_path, nprocs=nprocs)
    job.nodes[0].until("ready\n")
    time.sleep(0.3)
    os.kill(job.nodes[1].pid, signal.SIGTERM)
    first, second = job.end()
    assert (first.rc, second.rc) == (0, 0), first.err + second.err
    assert first.out.startswith("ready\nleft at ")
    said = {(logs / f"rank{rank}.log").read_text() for rank in range(1, sum(nprocs))}
    assert said == {first.out}


AUGMENTED = """
import os, sys, torch
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)

class Noisy(Dataset):
    def __len__(self):
        return 21
    def __getitem__(self, n):
        with open(f'{sys.argv[1]}/loaded', 'a') as file:
            file.write(f'{n} ')
        return torch.rand(4) + n, f'{n}'

net = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), 1e-3)
for epoch in range(2):
    for x, names in DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=2):
        loss = net(x).square().mean()
        opt.zero_grad(); loss.backward(); opt.step()
        print(epoch, names, round(loss.item(), 10))
print(torch.rand(2))
"""


def test_a_loader_that_draws_in_workers_is_loaded_once_on_each_node(nodes, tmp_path):
    script = tmp_path / "s.py"
    script.write_text(AUGMENTED)
    folders = [tmp_path / name for name in ("alone", "ranks")]
    for folder in folders:
        folder.mkdir()
    alone = fork_python(script, folders[0])
    first, second = Job(nodes, tmp_path, script, folders[1], nprocs=(2, 2)).end()
    assert (alone.rc, first.rc, second.rc) == (0, 0, 0), first.err + second.err
    assert first.out == alone.out
    once, twice = ((folder / "loaded").read_text().split() for folder in folders)
    assert len(once) == 42
    # by each node; and what workers had made when the first batch of a pass showed how
    assert 84 <= len(twice) <= 84 + 2 * 42
