"""One training written five ways, side by side on the same processors.

    python -m benchmarks.peers [--rounds 3] [--nproc 2] [--epochs 3] [--json FILE] [--plot FILE.svg]

`peers/plain.py` trains a small ResNet with BatchNorm on PNG files, with random crops and flips,
workers that load, an evaluation and a checkpoint each epoch. The files beside it are the same by
each tool's own documentation, with the same global batch and as many workers in all. The images are
scikit-learn's digits, enlarged, so nothing is downloaded; each is decoded whenever it is read.

Every process computes with one thread (OMP_NUM_THREADS=1), so that nobody has more of them than
there are processes; plain python also runs with as many as torch takes by itself. The ways take
turns, in float32; medians count, and ratios are taken within a round. Afterwards each runs once in
float64: its losses, its accuracies and its final weights are one process's if they are within 1e-9.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import json
import math
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from tests.support.cli import environ

SCRIPTS = Path(__file__).with_name("peers")
BATCH, SAME = 64, 1e-9
TRAINED = re.compile(r"^epoch \d+ train loss .* in ([\d.]+) s$", re.MULTILINE)
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "{nproc}")
FABRIC = ("lightning.fabric.cli", "--accelerator", "cpu", "--strategy", "ddp")  # `fabric run`


@dataclass(frozen=True)
class Timing:
    """Seconds from the command to its end and to its first step; images/s while it trained."""

    wall: float
    first: float
    rate: float


@dataclass
class Way:
    """A script and the module that launches it; then what was found."""

    name: str
    script: str
    launcher: tuple[str, ...] = ()
    needs: str = "torch"
    threads: str | None = "1"
    rounds: list[Timing] = field(default_factory=list)
    difference: float = math.nan
    val_loss: float = math.nan

    @property
    def same(self) -> bool:
        return self.difference < SAME

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.needs) is not None

    def command(self, nproc: int) -> list[str]:
        module = ["-m", *(word.format(nproc=nproc) for word in self.launcher)]
        return [sys.executable, *(module if self.launcher else ()), str(SCRIPTS / self.script)]

    def changed(self) -> tuple[int, int]:
        """Lines that were added to the plain script, and lines that were removed."""
        both = [(SCRIPTS / name).read_text().splitlines() for name in ("plain.py", self.script)]
        marks = [line[0] for line in difflib.ndiff(*both)]
        return marks.count("+"), marks.count("-")

    def median(self, of: Callable[[Timing], float]) -> float:
        return statistics.median(map(of, self.rounds))


def all_ways() -> list[Way]:
    return [
        Way("python, 1 thread", "plain.py"),
        Way("python, all threads", "plain.py", threads=None),
        Way("autoddp run", "plain.py", ("autoddp", "run", "--nproc", "{nproc}")),
        Way("DDP by hand, torchrun", "by_hand.py", TORCHRUN),
        Way("Accelerate, torchrun", "with_accelerate.py", TORCHRUN, "accelerate"),
        Way("Fabric", "with_fabric.py", (*FABRIC, "--devices", "{nproc}"), "lightning"),
    ]


def make_images(folder: Path, count: int) -> int:
    """Write digits as folders of PNG files, a fifth of them for validation; count the others."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    for i, (pixels, digit) in enumerate(
        zip(digits.images[:count], digits.target[:count], strict=True)
    ):
        path = folder / ("train" if i % 5 else "val") / str(digit) / f"{i:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray((pixels * 15).astype("uint8")).convert("RGB")
        image.resize((80, 80), Image.Resampling.BICUBIC).save(path)
    return len(list(folder.glob("train/*/*.png")))


def run(way: Way, work: Path, args: argparse.Namespace, images: int, dtype: str) -> Timing:
    """Run it in a folder of its own, which keeps its checkpoint."""
    cwd = work / way.name
    cwd.mkdir(exist_ok=True)
    options = {"data": work / "data", "epochs": args.epochs, "workers": args.nproc, "dtype": dtype}
    arguments = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    env = environ({"PYTHONUNBUFFERED": "1"})
    if way.threads is None:
        del env["OMP_NUM_THREADS"]
    printed, first, start = [], None, time.perf_counter()
    with (
        open(cwd / "stderr", "w+") as err,
        subprocess.Popen(
            [*way.command(args.nproc), *arguments],
            cwd=cwd,
            env=env,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
        ) as job,
    ):
        assert job.stdout is not None
        for line in job.stdout:
            if first is None and " step 0 " in line:
                first = time.perf_counter() - start
            printed.append(line)
        code = job.wait()
        wall = time.perf_counter() - start
        err.seek(0)
        assert code == 0, f"{way.name}: exit code {code}\n{''.join(printed)}{err.read()}"
    seconds = [float(text) for text in TRAINED.findall("".join(printed))]
    assert first is not None, f"{way.name} printed no step"
    assert len(seconds) == args.epochs, f"{way.name} printed {len(seconds)} epochs"
    return Timing(wall, first, args.epochs * (images // BATCH * BATCH) / sum(seconds))


def numbers(folder: Path) -> list[torch.Tensor]:
    """Losses and accuracies of each epoch, then the weights, as the checkpoint has them."""
    saved = torch.load(folder / "checkpoint.pt")
    weights = [weight for _, weight in sorted(saved["model"].items())]
    return [value.double() for value in (*map(torch.tensor, saved["history"]), *weights)]


def difference(want: list[torch.Tensor], got: list[torch.Tensor]) -> float:
    """The largest one of any epoch's numbers, or of any weight, in relation to its norm."""
    pairs = zip(want, got, strict=True)
    return torch.stack([(a - b).norm() / a.norm() for a, b in pairs]).max().item()


def measure(ways: list[Way], work: Path, args: argparse.Namespace) -> None:
    """Fill in what is found of each."""
    images = make_images(work / "data", args.images)
    for number in range(args.rounds):
        for way in ways:
            way.rounds.append(run(way, work, args, images, "float32"))
            said = f"round {number + 1}, {way.name}: {way.rounds[-1].wall:.1f} s"
            print(said, file=sys.stderr, flush=True)
    for way in ways:
        run(way, work, args, images, "float64")
        way.difference = difference(numbers(work / ways[0].name), numbers(work / way.name))
        way.val_loss = numbers(work / way.name)[args.epochs - 1][1].item()


MEASURES: dict[str, Callable[[Timing], float]] = {
    "seconds": lambda timing: timing.wall,
    "images/s": lambda timing: timing.rate,
    "first step, s": lambda timing: timing.first,
}


def table(ways: list[Way]) -> list[str]:
    """Markdown: a row for each, with the medians of its rounds."""
    heads = ["", *MEASURES, "of python's images/s", "lines", "validation loss", "one process's"]
    rows = [heads, ["---"] * len(heads)]
    for way in ways:
        if not way.installed:
            missing = f"{way.needs} is not installed: pip install '.[peers]'"
            rows.append([way.name, missing, *[""] * (len(heads) - 2)])
            continue
        pairs = zip(way.rounds, ways[0].rounds, strict=True)
        ratio = statistics.median(own.rate / plain.rate for own, plain in pairs)
        added, removed = way.changed()
        same = f"yes, to {way.difference:.0e}" if way.same else "no"
        found = [f"{way.median(of):.3g}" for of in MEASURES.values()]
        found += [f"{ratio:.2f}", f"+{added} -{removed}", f"{way.val_loss:.6f}", same]
        rows.append([way.name, *found])
    return [f"| {' | '.join(row)} |" for row in rows]


def draw(path: str, ways: list[Way]) -> None:
    """Draw medians as bars to the file `path`, each round as a dot, and lines that were added."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = [way.name for way in ways]
    figure = Figure(figsize=(12, 3.5), layout="constrained")
    FigureCanvasAgg(figure)
    *measured, lines = figure.subplots(1, len(MEASURES) + 1, sharey=True)
    for axes, (title, of) in zip(measured, MEASURES.items(), strict=True):
        axes.barh(names, [way.median(of) for way in ways])
        for way in ways:
            axes.plot([*map(of, way.rounds)], [way.name] * len(way.rounds), "k.")
        axes.set_xlabel(title)
    lines.barh(names, [way.changed()[0] for way in ways])
    lines.set_xlabel("lines added or changed")
    lines.invert_yaxis()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--images", type=int, default=1797, help="so many of the digits")
    parser.add_argument("--json", help="a file for all that was measured")
    parser.add_argument("--plot", help="a file for bars of it")
    args = parser.parse_args()
    ways = all_ways()
    there = [way for way in ways if way.installed]
    with tempfile.TemporaryDirectory() as folder:
        measure(there, Path(folder), args)
    print("\n".join(table(ways)))
    if args.json:
        found = {
            way.name: asdict(way) | {"same": way.same, "lines": way.changed()} for way in there
        }
        Path(args.json).write_text(json.dumps({"asked": vars(args), "ways": found}, indent=1))
    if args.plot:
        draw(args.plot, there)


if __name__ == "__main__":
    main()
