"""What libraries do to the disk by themselves; test_overlay.py installs the file as a package.

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
    """ultralytics: the first name that is free."""
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
    """timm: written beside, put in place, linked, the oldest removed."""
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


def folders(pause):
    """Cleared, made, filled beside, put in place, copied, moved, packed."""
    seen = []
    for turn in range(3):
        if os.path.isdir("out"):
            shutil.rmtree("out")
        pause()
        os.mkdir("out")  # raises if it is there
        os.makedirs("tmp-out/sub")
        Path("tmp-out/sub/a").write_text(f"{turn}")
        pause()
        os.rename("tmp-out", "out/final")
        Path("out/final/sub/b").write_text(Path("out/final/sub/a").read_text() * 2)
        shutil.copytree("out/final", "out/copy")
        shutil.move("out/copy/sub/a", "out/moved")
        pause()
        shutil.copy2("out/moved", "out/again")
        seen.append(sorted(f"{root}:{sorted(files)}" for root, _, files in os.walk("out")))
        with contextlib.suppress(OSError):
            os.rmdir("out")
        pause()
    shutil.make_archive("packed", "tar", "out", "final")
    shutil.unpack_archive("packed.tar", "unpacked")
    os.remove("packed.tar")  # it holds times
    return seen, Path("unpacked/final/sub/b").read_text(), os.path.getsize("out/final/sub/b")


def beside(pause):
    """huggingface_hub, joblib, safetensors: a temporary name first, in the same folder."""
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


def links(pause):
    """`latest` points to the last run."""
    said = []
    for turn in range(3):
        os.makedirs(f"run{turn}")
        Path(f"run{turn}/a").write_text(f"{turn}")
        if os.path.islink("latest"):
            said.append(os.readlink("latest"))
            pause()
            os.unlink("latest")
        os.symlink(f"run{turn}", "latest")
        pause()
        with open("latest/a", "a") as file:
            file.write("+")
        said.append(Path("latest/a").read_text())
        os.symlink("latest", "new")
        os.replace("new", "newest")
        said.append(Path("newest/a").read_text())
        pause()
    return said, os.path.realpath("newest").rpartition("/")[2]


PATTERNS = (next_folder, checkpoints, folders, beside, links)
