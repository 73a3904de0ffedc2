"""What proofs cost where they come: the first ten steps over the next ten, in seconds.

    python -m benchmarks.proofs [--ranks 2] [--rounds 3]

A ResNet with BatchNorm (torchvision's ResNet-18 on images of 64 x 64, batches of 32) and a
transformer of six layers (width 256, batches of 16 sequences of 128 tokens), each process with one
thread. Plain python is shown beside the ranks: its first steps are slower, too. A round runs each
once; medians count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.cli import environ

SCRIPT = """
import json, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
if sys.argv[1] == "resnet":
    from torchvision.models import resnet18
    model, size = resnet18(num_classes=10), 32
    data = TensorDataset(torch.randn(20 * size, 3, 64, 64), torch.randint(10, (20 * size,)))
else:
    layer = nn.TransformerEncoderLayer(256, 8, 1024, 0.0, batch_first=True)
    body = nn.TransformerEncoder(layer, 6)
    model = nn.Sequential(nn.Embedding(256, 256), body, nn.Linear(256, 256))
    size, tokens = 16, torch.randint(256, (20 * 16, 129))
    data = TensorDataset(tokens[:, :-1], tokens[:, 1:])
opt = torch.optim.SGD(model.parameters(), 0.01)
ends = [time.perf_counter()]
for x, y in DataLoader(data, size):
    loss = nn.functional.cross_entropy(model(x).flatten(0, -2), y.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    loss.item()
    ends.append(time.perf_counter())
print(json.dumps([ends[10] - ends[0], ends[20] - ends[10]]))
"""


def ratio(command: list[str], folder: str) -> float:
    """Seconds of the first ten steps over those of the next ten."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environ(),
        stdout=subprocess.PIPE,
        check=True,
        timeout=300,
    )
    first, following = json.loads(done.stdout)
    return first / following


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    run = ["-m", "autoddp", "run", "-q", "-n", str(asked.ranks)]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(SCRIPT)
        for model in ("resnet", "transformer"):
            ways = {"python": ["train.py", model], "ranks": [*run, "train.py", model]}
            found: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(asked.rounds):
                for name, command in ways.items():
                    found[name].append(ratio(command, folder))
            shown = (f"{name} {statistics.median(values):.2f}" for name, values in found.items())
            print(f"{model}: first ten steps over the next ten: {', '.join(shown)}", flush=True)


if __name__ == "__main__":
    main()
