"""What is built of the package for others: its wheel, its source distribution, its types."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.cli import ROOT

pytestmark = pytest.mark.slow

# what a user's editor and checker see; a line with `wrong` must be an error, no other may be one
USER = """
from collections.abc import Callable

import autoddp
from autoddp import distributed


@distributed(nproc=2, view="local", disable=["clocks"])
def main(lr: float, steps: int = 3) -> dict[str, float]:
    return {"loss": lr * steps}


@distributed
def plain() -> int:
    return autoddp.rank() + autoddp.world_size()


kept: Callable[[float, int], dict[str, float]] = main
version: str = autoddp.__version__
number: int = plain()
main("fast")  # wrong
text: str = plain()  # wrong
distributed(procs=2)  # wrong
distributed(view="mine")  # wrong
distributed(nproc="2")  # wrong
autoddp.ranks()  # wrong
"""
WRONG = [number for number, line in enumerate(USER.splitlines(), 1) if "# wrong" in line]


def copied(folder):
    """The files that a clone has, where building may leave something behind."""
    shown = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    done = subprocess.run(shown, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:  # no checkout: these tests are those of an unpacked source distribution
        pytest.skip("this is no clone of the repository")
    for name in filter(None, done.stdout.split("\0")):
        if os.path.exists(os.path.join(ROOT, name)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(os.path.join(ROOT, name), folder / name)
    return folder


def build(what, source, out):
    """Call setuptools as pip does, in a copy; its backend writes `out`/NAME."""
    source = shutil.copytree(source, out.with_name(f"{out.name}-of"))
    code = f"from setuptools import build_meta; build_meta.build_{what}({str(out)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (path,) = Path(out).iterdir()
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return copied(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    return build("wheel", source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def unpacked(source, tmp_path_factory):
    path = build("sdist", source, tmp_path_factory.mktemp("sdist"))
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
    (found,) = folder.iterdir()
    return found


def test_a_wheel_holds_the_package_its_types_and_its_licence_alone(source, wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    files = {str(p.relative_to(source)) for p in (source / "autoddp").rglob("*") if p.is_file()}
    meta = {name for name in names if ".dist-info/" in name}
    assert names - meta == files
    assert "autoddp/py.typed" in files
    assert [name for name in meta if name.endswith("/LICENSE")]
    (metadata,) = (name for name in meta if name.endswith("/METADATA"))
    text = zipfile.ZipFile(wheel).read(metadata).decode()
    for line in ("License-Expression: BSD-3-Clause", "Author: the autoddp authors"):
        assert line in text.splitlines()


def test_a_source_distribution_holds_all_files(source, unpacked):
    files = {str(p.relative_to(source)) for p in source.rglob("*") if p.is_file()}
    held = {str(p.relative_to(unpacked)) for p in unpacked.rglob("*") if p.is_file()}
    assert {name for name in files - held if "egg-info" not in name} == {".gitignore"}


def test_a_type_checker_sees_what_a_user_does_wrong_and_nothing_else(wheel, tmp_path):
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    (tmp_path / "user.py").write_text(USER)
    # the user's errors are ours to find, and reading torch takes most of the time
    (tmp_path / "mypy.ini").write_text("[mypy-torch.*]\nfollow_imports = skip\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "user.py"],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(site), "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if "user.py:" in line and "error" in line]
    lines = {int(line.split("user.py:")[1].split(":")[0]) for line in errors}
    assert sorted(lines) == WRONG, done.stdout + done.stderr
