"""Scripts with side effects, run by the command: once, as one process, and readable by all."""

import os
import re
from pathlib import Path

from tests.cli import run_cli, run_python

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
print(json.load(open(run / "files.json")), input())
Path("last").write_text(str(run / "last.pt"))
print(f"{float(sum(p.sum() for p in model.parameters())):.9f}")
"""


def run(folder, *command):
    (folder / "train.py").write_text(TRAIN)
    start = run_cli if command[0] == "run" else run_python
    done = start(*command, cwd=folder, stdin="yes\n")
    assert done.rc == 0, done.err
    return done.out


def test_a_timestamped_run_is_made_logged_and_resumed_as_by_one_process(tmp_path):
    alone, ranks = tmp_path / "alone", tmp_path / "ranks"
    alone.mkdir()
    ranks.mkdir()
    first = run(alone, "train.py"), run(ranks, "run", "--nproc", 3, "train.py")
    assert first[0] == first[1]
    last = [(folder / "last").read_text() for folder in (alone, ranks)]
    again = run(alone, "train.py", last[0]), run(ranks, "run", "--nproc", 3, "train.py", last[1])
    assert again[0] == again[1]
    for folder in (alone, ranks):
        assert len(os.listdir(folder / "runs")) == 2
        for made in (folder / "runs").iterdir():
            assert sorted(os.listdir(made)) == ["files.json", "last.pt", "log.csv", "out.npy"]
            assert len((made / "log.csv").read_text().splitlines()) == 2
        assert sorted(os.listdir(folder)) == ["last", "runs", "train.py"]


def test_an_error_of_the_disk_is_shown_once_with_the_users_path(tmp_path):
    (tmp_path / "s.py").write_text("import os\nos.makedirs('x')\nopen('x', 'w')\n")
    alone = run_python("s.py", cwd=tmp_path)
    os.rmdir(tmp_path / "x")
    ranks = run_cli("run", "--nproc", 2, "s.py", cwd=tmp_path)
    assert (ranks.rc, ranks.theirs) == (alone.rc, alone.theirs)
    assert "IsADirectoryError: [Errno 21] Is a directory: 'x'" in ranks.theirs


def test_a_script_killed_while_it_saves_leaves_the_old_checkpoint(tmp_path):
    (tmp_path / "s.py").write_text(
        "import os, torch\n"
        "torch.save({'n': 0}, 'last.pt')\n"
        "class Deadly:\n"
        "    def __reduce__(self):\n"
        "        os.kill(os.getpid(), 9)\n"
        "torch.save({'n': torch.zeros(1000), 'x': Deadly()}, 'last.pt')\n"
    )
    done = run_cli("run", "--nproc", 2, "s.py", cwd=tmp_path)
    assert done.rc != 0
    code = "import torch; print(torch.load('last.pt'))"
    assert run_python("-c", code, cwd=tmp_path).out == "{'n': 0}\n"


def test_a_loop_within_a_time_budget_stops_at_the_same_step(tmp_path):
    (tmp_path / "s.py").write_text(
        "import time, torch\n"
        "from torch import nn\n"
        "model = nn.Linear(4, 1)\n"
        "x = torch.randn(32, 4)\n"
        "end, steps = time.time() + 1, 0\n"
        "while time.time() < end:\n"
        "    model(x).sum().backward()\n"
        "    steps += 1\n"
        "print('done', steps)\n"
    )
    done = run_cli("run", "--nproc", 2, "--log-dir", tmp_path / "logs", "s.py", cwd=tmp_path)
    assert done.rc == 0, done.err
    assert re.match(r"done [1-9]", done.out)
    assert Path(tmp_path, "logs", "rank1.log").read_text() == done.out
