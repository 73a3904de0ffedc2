"""Random programs on a few names: each call answers or fails on all ranks as in one process."""

import os
import random
import shutil
from pathlib import Path

import pytest

from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from autoddp.effects.temporary import Temporary
from tests.effects.outward import on_ranks

NAMES = ("a", "b", "d", "d/f", "d/e", "d/e/g", "a/h")
OS = ("rename", "replace", "renames", "link", "symlink")
CALLS = 16


def write(mode):
    def call(name, text):
        with open(name, mode) as file:
            file.write(text)
        return Path(name).read_text()

    return call


def descriptor(flags):
    def call(name, _):
        os.close(os.open(name, flags, 0o644))

    return call


def walked(name, _):
    return [(top, sorted(folders), sorted(files)) for top, folders, files in os.walk(name)]


def asked(name, _):
    def answer(ask):
        try:
            return ask()
        except OSError as error:
            return error.errno, error.filename

    return sorted((e.name, answer(e.is_dir), answer(e.is_file)) for e in os.scandir(name))


ONE = {
    **{f"open {mode}": write(mode) for mode in ("w", "a", "x", "r+", "a+")},
    "create": descriptor(os.O_CREAT | os.O_WRONLY),
    "create new": descriptor(os.O_CREAT | os.O_EXCL | os.O_RDWR),
    "open there": descriptor(os.O_RDWR | os.O_TRUNC),
    "read": lambda name, _: Path(name).read_text(),
    "touch": lambda name, _: Path(name).touch(),
    "exists": lambda name, _: (os.path.exists(name), os.path.isdir(name), os.path.islink(name)),
    "list": lambda name, _: sorted(os.listdir(name)),
    "list all": lambda _, __: (walked(".", ""), asked(".", "")),
    "walk": walked,
    "scan": asked,
    "size": lambda name, _: os.path.isfile(name) and os.path.getsize(name),
    "mkdir": lambda name, _: os.mkdir(name),
    "makedirs": lambda name, _: os.makedirs(name, exist_ok=True),
    "remove": lambda name, _: os.remove(name),
    "rmdir": lambda name, _: os.rmdir(name),
    "removedirs": lambda name, _: os.removedirs(name),
    "rmtree": lambda name, _: shutil.rmtree(name),
    "real": lambda name, _: os.path.realpath(name) == os.path.abspath(name),
}
# called by their names, as patches are made later
TWO = {
    **{name: lambda a, b, name=name: getattr(os, name)(a, b) for name in OS},
    "copyfile": lambda a, b: shutil.copyfile(a, b),
    "move": lambda a, b: shutil.move(a, b),
    "copytree": lambda a, b: shutil.copytree(a, b, symlinks=True),
}


def program(seed: int, folder: Path) -> list:
    """What each call returns or raises, and what is left."""
    draw, log = random.Random(seed), []
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    for turn in range(CALLS):
        what = draw.choice([*ONE, *TWO])
        first, second = draw.choice(NAMES), draw.choice(NAMES)
        try:
            act = ONE.get(what)
            answer = act(first, f"{turn}") if act else TWO[what](first, second)
        except (OSError, shutil.Error) as error:
            answer = type(error).__name__, str(error)
        log.append((what, first, second, answer))
    return log


def left(folder: Path) -> list:
    found = []
    for path in sorted(folder.rglob("*")):
        kind = os.readlink(path) if path.is_symlink() else path.is_file() and path.read_text()
        found.append((str(path.relative_to(folder)), kind))
    return found


@pytest.mark.parametrize("nproc", [2, 3])
def test_random_programs(tmp_path, nproc):
    seeds = range(int(os.environ.get("AUTODDP_PROGRAMS", 60)))
    here = os.getcwd()
    ours, plain = tmp_path / "ours", tmp_path / "plain"
    ours.mkdir()
    plain.mkdir()

    def script(run):
        return [program(seed, ours / f"{seed}") for seed in seeds]

    ranks = on_ranks(script, nproc, Files, Folders, Temporary, folder=ours)
    try:
        for seed, *logs in zip(seeds, *ranks, strict=True):
            expected = program(seed, plain / f"{seed}")
            for log in logs:
                assert log == expected, f"program {seed}: {expected}"
            assert left(ours / f"{seed}") == left(plain / f"{seed}"), f"program {seed}"
    finally:
        os.chdir(here)
