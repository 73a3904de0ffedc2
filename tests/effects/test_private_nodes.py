"""Two nodes that share no folder: each has the files of one process, and reads its own."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.effects.test_caches import CACHE
from tests.launch import test_two_nodes
from tests.launch.test_two_nodes import ADDRESSES, PORT
from tests.support import archives
from tests.support.cli import environ, run_python
from tests.support.warm import enter_network

pytestmark = pytest.mark.cluster

nodes = test_two_nodes.nodes

EVERYTHING = """
import csv, glob, json, os, shutil, sys, tempfile, urllib.request
from pathlib import Path
import numpy as np, torch
from torch.utils.data import DataLoader, Dataset

url = sys.argv[1]
torch.manual_seed(0)
start = 0
if os.path.exists("runs/last.pt"):
    start = torch.load("runs/last.pt")["epoch"] + 1
    print("resumed", start, json.load(open("runs/config.json")))
os.makedirs("runs/figures", exist_ok=True)
net = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
json.dump({"lr": 0.1}, open("runs/config.json", "w"))
np.save("runs/data.npy", np.arange(64.0).reshape(16, 4) / 64)
print(sorted(os.listdir("runs")))

class Written(Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, at):
        return torch.from_numpy(np.load("runs/data.npy")[at]).float()

log = open("runs/log.csv", "a", newline="")
rows = csv.writer(log)
for epoch in range(start, start + 2):
    total = 0.0
    for x in DataLoader(Written(), batch_size=4, num_workers=1):
        opt.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        opt.step()
        total += loss.item()
    rows.writerow([epoch, f"{total:.4f}"])
    log.flush()
    torch.save({"net": torch.ones(2) * epoch, "epoch": epoch}, "runs/tmp.pt")
    os.replace("runs/tmp.pt", "runs/last.pt")
    print(epoch, torch.load("runs/last.pt")["epoch"], Path("runs/log.csv").read_text().split())
log.close()
shutil.copyfile("runs/last.pt", "runs/best.pt")
print(torch.load("runs/best.pt", mmap=True)["net"].tolist(), glob.glob("runs/*.pt") != [])
shutil.copytree("runs", "copy")
os.chdir("runs/figures")
Path("caption.txt").write_text("a figure")
os.chdir("../..")
print(Path("copy/log.csv").read_text().split(), Path("runs/figures/caption.txt").read_text())
shutil.rmtree("copy")
try:
    open("copy/log.csv")
except FileNotFoundError as error:
    print(error)
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "note").write_text("kept")
    print(Path(folder, "note").read_text(), os.listdir(folder))
print(urllib.request.urlretrieve(url + "/hello", "hello")[0], open("hello").read())
if start == 0:
    from torchvision.datasets import MNIST

    MNIST.mirrors = [url + "/mnist/"]
    MNIST.resources = list(json.load(urllib.request.urlopen(url + "/sums.json"))["mnist"].items())
    print(len(MNIST("data", train=True, download=True)), len(MNIST("data", train=False)))
"""


class Pair:
    """`autoddp run` on two nodes, which do not share the folders in `private`."""

    def __init__(self, names, folder: Path, *, shared: bool = False):
        self.names, self.at, self.tmp = names, folder / "at", folder / "tmp"
        self.homes = [folder / ("node" if shared else f"node{n}") for n in range(2)]
        for made in (self.at, self.tmp, *self.homes, *(folder / f"tmp{n}" for n in range(2))):
            made.mkdir(exist_ok=True)

    def run(self, script: Path, *args: str, nprocs=(1, 1)) -> list[tuple[str, str]]:
        """The output of each node."""
        processes = []
        for node, name in enumerate(self.names):
            line = (
                f"mount --make-rprivate / && mount --bind {self.homes[node]} {self.at} && "
                f"mount --bind {self.tmp}{node} {self.tmp} && cd {self.at} && "
                f"exec {sys.executable} -m autoddp run -n {nprocs[node]} "
                f"--nnodes 2 --node-rank {node} "
                f"--master-addr {ADDRESSES[0]} --master-port {PORT} {script} {' '.join(args)}"
            )
            processes.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", name, "sh", "-c", line],
                    env=environ({"TMPDIR": str(self.tmp)}),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        try:
            ends = [process.communicate(timeout=240) for process in processes]
        finally:
            for process in processes:
                process.kill()
        for process, (out, err) in zip(processes, ends, strict=True):
            assert process.returncode == 0, f"{out}\n{err}\n{ends[0][1]}\n{ends[1][1]}"
        return ends


def inside(name: str):
    """A server with a socket in a node's network, made by a thread that enters it."""

    def listen(folder: Path) -> archives.Server:
        made: list[archives.Server] = []

        def make() -> None:
            enter_network(name)
            made.append(archives.Server(folder, ADDRESSES[0]))

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        return made[0]

    return listen


@pytest.fixture(scope="module")
def server(nodes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    archives.make(folder)
    (folder / "hello").write_text("hello\n")
    with archives.serving(folder, inside(nodes[0])) as serving:
        yield serving


@pytest.fixture(scope="module")
def alone(server, tmp_path_factory):
    """The output, files and requests of one process, in its first and its second run."""
    folder = tmp_path_factory.mktemp("alone")
    script = folder / "s.py"
    script.write_text(EVERYTHING)
    runs = []
    (folder / "at").mkdir()
    with archives.serving(server.folder) as here:
        for _ in range(2):
            before = here.requests.copy()
            run = run_python(script, here.url, cwd=folder / "at")
            assert run.rc == 0, run.err
            runs.append((run.out, contents(folder / "at"), dict(here.requests - before)))
    return script, runs


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
def test_everything(nodes, server, alone, shared, tmp_path):
    script, runs = alone
    pair = Pair(nodes, tmp_path, shared=shared)
    for printed, left, once in runs[: 1 if shared else 2]:
        before = server.requests.copy()
        (out, err), (out2, _) = pair.run(script, server.url, nprocs=(1, 2))
        assert (out, out2) == (printed, "")
        said = re.findall(r"node 1 does not share (\S+) with node 0", err)
        assert said == ([] if shared else [str(pair.at)])
        assert contents(pair.homes[0]) == left
        asked = dict(server.requests - before)
        assert asked.pop("sums.json", 1) == once.get("sums.json", 1), "a body is handed on"
        files = {name: count for name, count in once.items() if name != "sums.json"}
        assert asked == {name: count * (1 if shared else 2) for name, count in files.items()}
        assert contents(pair.homes[1]) == left, "each node has all of it, for the next job"
    temporary = [path.name for n in range(2) for path in (tmp_path / f"tmp{n}").iterdir()]
    assert [name for name in temporary if "inductor" not in name] == []


CACHED = """
import os, sys
sys.path.insert(0, sys.argv[1])
import cache_of_a_library as library

made = []

def make(shard):
    made.append(shard)
    return bytes([shard, len(made)])

for _ in range(2):
    folder = os.path.expanduser("~/.cache/huggingface/datasets/csv")
    print(library.filled(folder, make, lambda: None), made, sorted(os.listdir(folder)))
"""


@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
def test_a_librarys_cache(nodes, shared, tmp_path):
    package = tmp_path / "lib" / "site-packages"
    package.mkdir(parents=True)
    (package / "cache_of_a_library.py").write_text(CACHE)
    (tmp_path / "s.py").write_text(
        CACHED.replace('expanduser("~', f'abspath("{tmp_path}/at')  # the folder that differs
    )
    pair = Pair(nodes, tmp_path, shared=shared)
    for made in ([0, 1], []):  # cold, then warm
        (out, _), (out2, _) = pair.run(tmp_path / "s.py", str(package), nprocs=(1, 2))
        line = f"[[0, 1], [1, 2]] {made} ['0', '1']\n"
        assert (out, out2) == (line * 2, "")
    assert contents(pair.homes[0]) == contents(pair.homes[1])
    assert len(contents(pair.homes[1])) == 3
