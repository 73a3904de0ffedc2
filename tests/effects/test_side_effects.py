"""Scripts with side effects, run by the command: once, as one process, and readable by all."""

import gzip
import os
import re
import zipfile

import pytest
import torch

TRAIN = """
import csv, json, os, sys, time, datetime, uuid, random
import numpy as np, torch
from pathlib import Path
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

random.seed(os.getpid())
run = Path("runs") / (datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f") + uuid.uuid4().hex[:4])
os.makedirs(run, exist_ok=False)
torch.manual_seed(0)
x = torch.randn(50, 8, dtype=torch.float64)
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).double()
opt = torch.optim.SGD(model.parameters(), 0.1)
start = 0
if len(sys.argv) > 1:
    state = torch.load(sys.argv[1])
    model.load_state_dict(state["model"])
    start = state["epoch"] + 1
log = open(run / "log.csv", "w", newline="")
rows = csv.writer(log)
began = time.perf_counter()
for epoch in range(start, start + 2):
    total = 0
    for a, b in DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True):
        opt.zero_grad()
        out = model(a)
        loss = nn.functional.cross_entropy(out, b)
        loss.backward()
        opt.step()
        total += loss.item()
    rows.writerow([epoch, total])
    log.flush()
    torch.save({"model": model.state_dict(), "epoch": epoch, "out": out.detach()}, run / "last.pt")
    np.save(run / "out.npy", out.detach())
log.close()
assert time.perf_counter() >= began
state = torch.load(run / "last.pt")
print(len(list(csv.reader(open(run / "log.csv")))), sorted(state), tuple(state["out"].shape))
print(bool(torch.equal(torch.from_numpy(np.load(run / "out.npy")), state["out"])))
json.dump(sorted(os.listdir(run)), open(run / "files.json", "w"))
print(json.load(open(run / "files.json")))
Path("last").write_text(str(run / "last.pt"))
print(f"{sum(p.sum().item() for p in model.parameters()):.9f}")
"""


@pytest.mark.parametrize("nproc", [2, 3])
def test_a_timestamped_run_is_made_logged_and_resumed_as_by_one_process(tmp_path, warm, nproc):
    (tmp_path / "train.py").write_text(TRAIN)
    script = str(tmp_path / "train.py")
    commands = {"alone": ["python"], "ranks": ["autoddp", "run", "--nproc", str(nproc)]}
    printed = []
    for folder, command in commands.items():
        at = tmp_path / folder
        first = warm.run(*command, script, folder=at)
        again = warm.run(*command, script, (at / "last").read_text(), folder=at)
        assert (first.code, again.code) == (0, 0), first.err + again.err
        printed.append((first.out, again.out))
        assert sorted(os.listdir(at)) == ["last", "runs"]
        assert len(os.listdir(at / "runs")) == 2
        for made in (at / "runs").iterdir():
            assert sorted(os.listdir(made)) == ["files.json", "last.pt", "log.csv", "out.npy"]
            assert len((made / "log.csv").read_text().splitlines()) == 2
    assert printed[0] == printed[1]


def test_an_error_of_the_disk_is_shown_once_with_the_users_path(tmp_path, warm):
    script = tmp_path / "s.py"
    script.write_text("import os\nos.makedirs('x')\nopen('x', 'w')\n")
    alone = warm.run("python", str(script), folder=tmp_path / "alone")
    ranks = warm.run("autoddp", "run", "-q", "--nproc", "2", str(script), folder=tmp_path / "ranks")
    assert (ranks.code, ranks.err) == (alone.code, alone.err)
    assert "IsADirectoryError: [Errno 21] Is a directory: 'x'" in ranks.err


def test_a_script_killed_while_it_saves_leaves_the_old_checkpoint(tmp_path, warm):
    script = tmp_path / "s.py"
    script.write_text(
        "import os, torch\n"
        "torch.save({'n': 0}, 'last.pt')\n"
        "class Deadly:\n"
        "    def __reduce__(self):\n"
        "        os.kill(os.getpid(), 9)\n"
        "torch.save({'n': torch.zeros(1000), 'x': Deadly()}, 'last.pt')\n"
    )
    done = warm.run("autoddp", "run", "--nproc", "2", str(script), folder=tmp_path / "ranks")
    assert done.code == 128 + 9
    assert torch.load(tmp_path / "ranks" / "last.pt") == {"n": 0}
    assert os.listdir(tmp_path / "ranks") == ["last.pt"]


def test_a_loop_within_a_time_budget_stops_at_the_same_step(tmp_path, warm):
    script = tmp_path / "s.py"
    script.write_text(
        "import time, torch\n"
        "from torch import nn\n"
        "model = nn.Linear(4, 1)\n"
        "x = torch.randn(32, 4)\n"
        "end, steps = time.time() + 0.5, 0\n"
        "while time.time() < end:\n"
        "    model(x).sum().backward()\n"
        "    steps += 1\n"
        "print('done', steps)\n"
    )
    command = ["autoddp", "run", "--nproc", "2", "--log-dir", str(tmp_path / "logs"), str(script)]
    done = warm.run(*command, folder=tmp_path / "ranks")
    assert done.code == 0, done.err
    assert re.match(r"done [1-9]", done.out)
    assert (tmp_path / "logs" / "rank1.log").read_text() == done.out


LEFT = """
import csv, gzip, logging, sys, zipfile, os
log = open("log", "w")
log.write("to the end")
table = csv.writer(open("table", "w", newline=""))
table.writerow([1, 2])
packed = gzip.open("packed.gz", "wt")
packed.write("packed")
archive = zipfile.ZipFile("archive.zip", "w")
archive.writestr("name", "text")
handler = logging.FileHandler("logging")
logging.getLogger().addHandler(handler)
logging.warning("said")
class Run:
    def __init__(self):
        self.me, self.file = self, open("run", "w")
    def __del__(self):
        self.file.write("over")
        self.file.close()
        os.mkdir("made")
        print("deleted", file=sys.__stdout__, flush=True)
run = Run()
"""


def test_what_a_script_leaves_open_is_closed_as_python_closes_it(tmp_path, warm):
    (tmp_path / "left.py").write_text(LEFT)
    done = warm.run(
        "autoddp", "run", "--nproc", "2", str(tmp_path / "left.py"), folder=tmp_path / "ranks"
    )
    assert done.code == 0, done.err
    assert done.out == "deleted\n"
    assert [line for line in done.err.splitlines() if not line.startswith("[autoddp]")] == []
    ranks = tmp_path / "ranks"
    texts = {name: (ranks / name).read_text() for name in ("log", "table", "logging", "run")}
    assert texts == {"log": "to the end", "table": "1,2\n", "logging": "said\n", "run": "over"}
    assert (ranks / "made").is_dir()
    assert gzip.decompress((ranks / "packed.gz").read_bytes()) == b"packed"
    assert zipfile.ZipFile(ranks / "archive.zip").read("name") == b"text"
