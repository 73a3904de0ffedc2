"""Seconds of small scripts on ranks, over those of `python`: no script should be slower on ranks.

    python -m benchmarks.never_slower [--placement auto sharded at-once] [--ranks 2] [--rounds 1]
        [--steps N] [NAME ...]

Each script runs by `python` and on ranks in turn, with one thread in each process, in an empty
folder that is its home. `at-once` stands for as many runs by `python` at once as there are ranks,
the slowest of which counts: what the machine can do of whole batches on each rank. Seconds are
those of the whole command, and for the loops, in a second table, of what comes after their imports,
which is what remains in a long training. Scripts of `tests/libraries` need those libraries; without
them their rows are left out.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.libraries.cases import cases
from tests.support.cli import environ

ROOT = Path(__file__).parents[1]
LOOP = """
import sys, time, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.optim.Adam([torch.zeros(1)])  # imports a lot
began = time.perf_counter()
torch.manual_seed(0)
most = int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 30
data = TensorDataset(torch.randn(1024, 20), torch.randn(1024, 1))
def batches(steps, size=32, **given):
    steps = min(steps, most)
    while True:
        for batch in DataLoader(data, size, shuffle=True, **given):
            yield batch
            steps -= 1
            if not steps:
                return
def train(net, batches, loss=lambda net, x, y: F.mse_loss(net(x), y)):
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for x, y in batches:
        optimizer.zero_grad()
        loss(net, x, y).backward()
        optimizer.step()
def mlp(width=32, *more):
    return nn.Sequential(nn.Linear(20, width), nn.ReLU(), *more, nn.Linear(width, 1))
"""
END = "\nprint('seconds', time.perf_counter() - began)\n"
LOOPS = {
    "mlp": "train(mlp(), batches(6000))",
    "mlp of width 1024": "train(mlp(1024, nn.Linear(1024, 1024)), batches(400, 128))",
    "BatchNorm and dropout": "train(mlp(32, nn.BatchNorm1d(32), nn.Dropout(0.1)), batches(5000))",
    "accumulation of 4": """
net = mlp()
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for number, (x, y) in enumerate(batches(8000)):
    F.mse_loss(net(x), y).backward()
    if number % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
""",
    "second derivatives": """
def loss(net, x, y):
    x.requires_grad_()
    slope = torch.autograd.grad(net(x).sum(), x, create_graph=True)[0]
    return torch.autograd.grad(slope.sum(), x, create_graph=True)[0].square().mean()
train(nn.Sequential(nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1)), batches(3000), loss)
""",
    "functions that gather": """
def loss(net, x, y):
    h = net(x)
    for _ in range(5):
        h = h + 0.1 * h.sort(0)[0].cumsum(0)
    return F.mse_loss(h, y)
train(mlp(), batches(3000), loss)
""",
    "gan": """
maker, judge = mlp(), nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 1))
one, two = (torch.optim.Adam(net.parameters(), 1e-3) for net in (maker, judge))
for x, y in batches(2500):
    two.zero_grad()
    made = maker(x)
    (F.softplus(-judge(y)).mean() + F.softplus(judge(made.detach())).mean()).backward()
    two.step()
    one.zero_grad()
    F.softplus(-judge(made)).mean().backward()
    one.step()
""",
    "updates by hand": """
weights = [torch.randn(size).mul_(0.2).requires_grad_() for size in ((20, 32), (32,), (32, 1))]
for x, y in batches(6000):
    F.mse_loss(F.relu(x @ weights[0] + weights[1]) @ weights[2], y).backward()
    with torch.no_grad():
        for w in weights:
            w -= 0.01 * w.grad
            w.grad = None
""",
    "evaluation": """
net = mlp()
with torch.no_grad():
    for x, y in batches(12000):
        (net(x) - y).square().mean().item()
""",
    "two workers": "train(mlp(), batches(1500, num_workers=2, persistent_workers=True))",
    "a loss read at each step": """
def loss(net, x, y):
    found = F.mse_loss(net(x), y)
    found.item()
    return found
train(mlp(), batches(5000), loss)
""",
    "transformer": """
layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
net = nn.ModuleList([nn.Linear(1, 16), nn.TransformerEncoder(layer, 1), nn.Linear(16, 1)])
def loss(net, x, y):
    return F.mse_loss(net[2](net[1](net[0](x.unsqueeze(2)))).mean(1), y)
train(net, batches(1500), loss)
""",
    "cnn": """
parts = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.Flatten()
net = nn.Sequential(nn.Linear(20, 256), nn.Unflatten(1, (1, 16, 16)), *parts, nn.Linear(4096, 1))
train(net, batches(1000))
""",
}
FILES = {
    "examples/digits": ("examples/single_gpu/digits.py", "--epochs", "10"),
    "examples/vae": ("examples/single_gpu/vae.py", "--epochs", "10"),
    "examples/contrastive": ("examples/single_gpu/contrastive.py", "--epochs", "6"),
}


LIBRARIES = (
    *("accelerate_loop", "fastai_learner", "gpytorch_regression", "ignite_engine", "keras_fit"),
    *("lightning_trainer", "timm_train", "transformers_generate", "transformers_trainer"),
)
FILES |= {
    f"libraries/{name}": (str(case.script), *case.arguments)
    for name, case in cases().items()
    if name in LIBRARIES and case.version
}


def seconds(command: list[str], folder: Path) -> tuple[float, float]:
    """Return how long a command takes, and what it says of its part after the imports."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environ({"HOME": str(folder)}),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    took = time.perf_counter() - start
    assert done.returncode == 0, done.stderr
    own = [line for line in done.stdout.splitlines() if line.startswith("seconds ")]
    return took, float(own[-1].split()[1]) if own else 0.0


def command(name: str, way: str, ranks: int, steps: int) -> list[str]:
    """Return what runs a script, whose loop is in this folder."""
    file, *given = FILES.get(name, ("loop.py", *([str(steps)] if steps else [])))
    script = [file if name in LOOPS else str(ROOT / file), *given]
    run = ["-m", "autoddp", "run", "-n", str(ranks), "--placement", way]
    return script if way in ("python", "at-once") else run + script


def slowest(name: str, command: list[str], count: int) -> tuple[float, float]:
    """Return the seconds of the slowest of some runs at once, each in a folder of its own."""
    with tempfile.TemporaryDirectory() as made, ThreadPoolExecutor(count) as at_once:
        folders = [Path(made, str(number)) for number in range(count)]
        for folder in folders:
            folder.mkdir()
            (folder / "loop.py").write_text(LOOP + LOOPS.get(name, "") + END)
        return max(at_once.map(lambda folder: seconds(command, folder), folders))


def measured(name: str, ways: list[str], ranks: int, rounds: int, steps: int) -> list[Any]:
    """Return the median seconds of `python` and of each placement: whole, and after imports."""
    times: list[list[tuple[float, float]]] = []
    for _ in range(rounds):
        row = []
        for way in ["python", *ways]:
            count = ranks if way == "at-once" else 1
            row.append(slowest(name, command(name, way, ranks, steps), count))
        times.append(row)
    columns = zip(*times, strict=True)
    return [[statistics.median(part) for part in zip(*column, strict=True)] for column in columns]


def table(title: str, rows: dict[str, list[float]], ways: list[str]) -> None:
    """Print a row for each script, and the worst ratio of each placement."""
    print(f"\n{title:32} {'python':>8}", *(f"{x:>16}" for x in ways))
    for name, (plain, *found) in rows.items():
        print(f"{name:32} {plain:8.2f}", *(f"{took:8.2f} ({took / plain:5.2f})" for took in found))
    for number, way in enumerate(ways, 1):
        ratio, name = max((found[number] / found[0], name) for name, found in rows.items())
        print(f"worst with {way}: {ratio:.2f} ({name})")


def main() -> None:
    """Measure each script, and print both tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--placement", nargs="+", default=["auto", "sharded"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0, help="of a loop, at most")
    args = parser.parse_args()
    whole, after = {}, {}
    for name in args.names or [*LOOPS, *FILES]:
        found = measured(name, args.placement, args.ranks, args.rounds, args.steps)
        whole[name] = [took for took, _ in found]
        if name in LOOPS:
            after[name] = [took for _, took in found]
        print(name, *(f"{took:.2f}" for took in whole[name]), file=sys.stderr, flush=True)
    table("seconds of the command", whole, args.placement)
    if after:
        table("seconds after the imports", after, args.placement)


if __name__ == "__main__":
    main()
