"""steps/s of compiled models on ranks, against the same script with python, one thread each.

    python -m benchmarks.compiled [--rounds 3] [--ranks 2] [resnet gpt bert]

The two take turns, each in new processes, with kernels from inductor's cache after the first time.
How far losses are apart is asked in float64, since rounding grows in a few steps of float32. `bert`
is Hugging Face's, where transformers is installed.
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

KINDS = ("resnet", "gpt", "bert")
JOB = """
import json, logging, sys, time
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # that there is no GPU
torch.manual_seed(0)
torch.set_num_threads(1)
kind, precise = sys.argv[1], len(sys.argv) > 2
steps, rows = 5 if precise else 12, 128 if kind == "resnet" else 32
torch.set_default_dtype(torch.float64 if precise else torch.float32)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def forward(self, x):
        rows, length, width = x.size()
        parts = self.qkv(self.first(x)).split(width, dim=2)
        q, k, v = (t.view(rows, length, self.heads, -1).transpose(1, 2) for t in parts)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(h.transpose(1, 2).contiguous().view(rows, length, width))
        return x + self.mlp(self.second(x))


class GPT(nn.Module):
    def __init__(self, tokens=256, width=192):
        super().__init__()
        self.token, self.place = nn.Embedding(tokens, width), nn.Embedding(128, width)
        self.blocks = nn.Sequential(*(Block(width, 6) for _ in range(4)))
        self.head = nn.Linear(width, tokens, bias=False)

    def forward(self, ids, labels):
        x = self.blocks(self.token(ids) + self.place(torch.arange(ids.size(1))))
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


if kind == "resnet":
    import torchvision

    net, x, y = torchvision.models.resnet18(num_classes=10), torch.randn(rows * 10, 3, 32, 32), 10
    loss_of = lambda a, b: F.cross_entropy(model(a), b)
elif kind == "gpt":
    net, x, y = GPT(), torch.randint(0, 256, (320, 128)), 0
    loss_of = lambda a, b: model(a, a)
else:
    from transformers import BertConfig, BertForSequenceClassification

    settings = dict(hidden_size=192, num_hidden_layers=4, num_attention_heads=6)
    net = BertForSequenceClassification(BertConfig(intermediate_size=768, **settings))
    x, y = torch.randint(0, 500, (320, 128)), 2
    loss_of = lambda a, b: model(input_ids=a, labels=b).loss
model = torch.compile(net)
loader = DataLoader(TensorDataset(x, torch.randint(0, max(y, 2), (len(x),))), rows)
optimizer, losses, done = torch.optim.SGD(net.parameters(), lr=0.01), [], 0
while done < steps:
    for a, b in loader:
        loss = loss_of(a, b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
        if done == 2:
            losses.append(loss.item())
            began = time.perf_counter()
losses.append(loss.item())
print(json.dumps({"steps/s": (done - 2) / (time.perf_counter() - began), "losses": losses}))
"""


def measured(command: list[str], job: Path) -> dict[str, object]:
    """What the job prints."""
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=environ(), timeout=900
    )
    assert done.returncode == 0, f"{job}: {done.stderr[-2000:]}"
    assert "runs eagerly" not in done.stderr, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Print the medians, and how far the losses are apart."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=KINDS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder, "job.py")
        job.write_text(JOB)
        for kind in args.kinds:
            ways = {
                "python": [str(job), kind],
                "ranks": ["-m", "autoddp", "run", "-n", str(args.ranks), str(job), kind],
            }
            seen: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(args.rounds + 1):  # the first fills the cache
                found = {way: measured(command, job) for way, command in ways.items()}
                for way, one in found.items():
                    seen[way].append(one["steps/s"])
            losses = (measured([*command, "float64"], job)["losses"] for command in ways.values())
            apart = max(abs(a - b) / abs(a) for a, b in zip(*losses, strict=True))
            plain, ranks = (statistics.median(seen[way][1:]) for way in ways)
            print(
                f"{kind:7} python {plain:.2f} steps/s, {args.ranks} ranks {ranks:.2f}: "
                f"{ranks / plain:.2f} times; losses {apart:.1e} apart",
                flush=True,
            )


if __name__ == "__main__":
    main()
