"""Changes of the disk as libraries make them; test_overlay.py installs this file as a package.

Each function is one library's way. `pause()` stands for whatever a rank may be early or late by.
"""

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import torch


def next_folder(pause):
    """ultralytics: use the first free name."""
    made = []
    for _ in range(2):
        name, number = "runs/train", 2
        while os.path.exists(name):
            name, number = f"runs/train{number}", number + 1
        pause()
        os.makedirs(name)
        Path(name, "args.json").write_text(json.dumps({"name": name}))
        made.append(name)
        pause()
    return made, sorted(os.listdir("runs")), json.loads(Path(made[1], "args.json").read_text())


def checkpoints(pause):
    """timm: write a temporary file, rename it, link it, remove the oldest."""
    os.makedirs("ckpt", exist_ok=True)
    kept = []
    for epoch in range(4):
        torch.save({"epoch": epoch, "x": torch.ones(2)}, "ckpt/tmp.pt")
        pause()
        os.replace("ckpt/tmp.pt", "ckpt/last.pt")
        pause()
        if os.path.exists(f"ckpt/{epoch}.pt"):
            os.unlink(f"ckpt/{epoch}.pt")
        os.link("ckpt/last.pt", f"ckpt/{epoch}.pt")
        kept.append(f"ckpt/{epoch}.pt")
        if len(kept) > 2:
            os.remove(kept.pop(0))
        pause()
        with contextlib.suppress(FileNotFoundError):
            os.unlink("ckpt/best.pt")
        os.link("ckpt/last.pt", "ckpt/best.pt")
    return (
        sorted(os.listdir("ckpt")),
        torch.load("ckpt/last.pt")["epoch"],
        torch.load("ckpt/best.pt")["epoch"],
    )


def beside(pause):
    """huggingface_hub, joblib, safetensors: write under a temporary name in the same folder."""
    os.makedirs("cache", exist_ok=True)
    for turn in range(2):
        with tempfile.NamedTemporaryFile("w", dir="cache", delete=False) as file:
            file.write(f"named {turn}")
        pause()
        os.replace(file.name, "cache/named")
        number, name = tempfile.mkstemp(dir="cache")
        with os.fdopen(number, "w") as file:
            file.write(f"made {turn}")
        pause()
        os.chmod(name, 0o644)
        os.utime(name, (1, 1))
        os.rename(name, "cache/made")
        folder = tempfile.mkdtemp(dir="cache")
        Path(folder, "a").write_text("in a folder")
        if turn:
            shutil.rmtree("cache/folder")
        os.rename(folder, "cache/folder")
        with tempfile.TemporaryDirectory() as elsewhere:
            Path(elsewhere, "x").write_text(f"from elsewhere {turn}")
            shutil.move(f"{elsewhere}/x", "cache/elsewhere")
        pause()
    with tempfile.NamedTemporaryFile("w+", dir="cache") as file:
        file.write("gone")
        file.flush()
        size = os.path.getsize(file.name)
    return (
        sorted(os.listdir("cache")),
        Path("cache/elsewhere").read_text(),
        os.path.getmtime("cache/made"),
        size,
    )


PATTERNS = (next_folder, checkpoints, beside)
