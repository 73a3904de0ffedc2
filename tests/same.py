"""Is what N ranks printed and wrote what one process printed and wrote?

Every comparison returns the largest difference it met, relative to the larger value (a value below
a thousandth counts as one: a sum that cancels to nothing has no relative accuracy), and fails with
the place and both values where that is above `rtol`. An `rtol` of 0 asks for the same bytes.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.warm import Run

SMALL = 1e-3
OURS = re.compile(r"\[autoddp\] |\s*$|.*\d%")  # our own lines, and bars that the clock draws
NUMBER = re.compile(r"(?<![\w.])-?(?:\d+\.?\d*(?:e[+-]?\d+)?|inf|nan)(?![\w])")
CLOCK = re.compile(r"\d{8}-\d{6}")  # a name made by strftime("%Y%m%d-%H%M%S")
TEXT = {".txt", ".csv", ".json", ".log"}
PICTURES = {".png", ".pdf"}
WEIGHTS = {".pt", ".pth"}


def same_run(want: Run, got: Run, rtol: float) -> float:
    """Compare exit codes, terminals and files of two runs."""
    worst = same_terminal(want, got, rtol)
    return max(worst, same_files(want.folder, got.folder, rtol))


def same_terminal(want: Run, got: Run, rtol: float) -> float:
    """Compare exit codes and what was printed; nothing is added to stderr but our own lines."""
    shown = f"\n--- stdout\n{got.out[-2000:]}\n--- stderr\n{got.err[-4000:]}"
    assert got.code == want.code, f"exit code {got.code} instead of {want.code}{shown}"
    added = [line for line in got.err.splitlines() if line not in want.err.splitlines()]
    strange = [line for line in added if not OURS.match(line)]
    assert not strange, f"on stderr: {strange[0]!r}{shown}"
    assert not got.left, f"outlived the command: {got.left}"
    return same_text(want.out, got.out, rtol, "stdout")


def same_text(want: str, got: str, rtol: float, where: str) -> float:
    """Line by line: numbers close, whole numbers and all other text equal."""
    want, got = CLOCK.sub("TIME", want), CLOCK.sub("TIME", got)
    if rtol == 0:
        assert got == want, f"{where}: {_first_line(want, got)}"
    ours, theirs = got.splitlines(), want.splitlines()
    worst = 0.0
    for number, (a, b) in enumerate(zip(theirs, ours, strict=False), start=1):
        place = f"{where} line {number}: {b!r} instead of {a!r}"
        assert NUMBER.sub("#", a) == NUMBER.sub("#", b), place
        for x, y in zip(NUMBER.findall(a), NUMBER.findall(b), strict=True):
            if x != y:
                assert not (_whole(x) and _whole(y)), place
                worst = max(worst, _near(float(x), float(y), rtol, place))
    assert len(ours) == len(theirs), f"{where}: {len(ours)} lines instead of {len(theirs)}"
    return worst


def same_files(want: Path, got: Path, rtol: float) -> float:
    """The same names, and content that agrees by the kind of file."""
    theirs, ours = _names(want), _names(got)
    assert sorted(ours) == sorted(theirs), f"files {sorted(ours)} instead of {sorted(theirs)}"
    return max((_same_file(theirs[n], ours[n], rtol, n) for n in theirs), default=0.0)


def same_value(want: Any, got: Any, rtol: float, where: str) -> float:
    """Anything that a checkpoint holds, to its leaves: types, order, keys, dtypes, values."""
    assert type(got) is type(want), f"{where}: {type(got)} instead of {type(want)}"
    if isinstance(want, torch.Tensor):
        return _same_tensor(want, got, rtol, where)
    if isinstance(want, Mapping):
        assert list(got) == list(want), f"{where}: keys {list(got)} instead of {list(want)}"
        return max((same_value(want[k], got[k], rtol, f"{where}[{k!r}]") for k in want), default=0)
    if isinstance(want, list | tuple):
        assert len(got) == len(want), f"{where}: {len(got)} items instead of {len(want)}"
        pairs = enumerate(zip(want, got, strict=True))
        return max((same_value(a, b, rtol, f"{where}[{i}]") for i, (a, b) in pairs), default=0)
    if isinstance(want, float):
        return _near(want, got, rtol, f"{where}: {got!r} instead of {want!r}")
    if isinstance(want, torch.nn.Module):
        return same_value(want.state_dict(), got.state_dict(), rtol, where)
    assert got == want, f"{where}: {got!r} instead of {want!r}"
    return 0.0


def _same_file(want: Path, got: Path, rtol: float, name: str) -> float:
    if want.is_dir():
        return 0.0
    if want.suffix in TEXT:
        return same_text(want.read_text(), got.read_text(), rtol, name)
    if want.suffix in WEIGHTS:
        with zipfile.ZipFile(got) as archive:
            pickles = [archive.read(n) for n in archive.namelist() if n.endswith(".pkl")]
        assert not any(b"autoddp" in text for text in pickles), f"{name} names a class of ours"
        a, b = (torch.load(path, weights_only=False) for path in (want, got))
        return same_value(a, b, rtol, name)
    if want.suffix == ".npy":
        return _same_array(np.load(want), np.load(got), rtol, name)
    if want.suffix == ".npz":
        with np.load(want) as a, np.load(got) as b:
            assert a.files == b.files, f"{name}: {b.files} instead of {a.files}"
            return max(_same_array(a[key], b[key], rtol, f"{name}[{key}]") for key in a.files)
    if want.suffix in PICTURES:
        assert got.read_bytes()[:4] == want.read_bytes()[:4], f"{name} is no such picture"
        return 0.0
    assert got.read_bytes() == want.read_bytes(), f"{name} holds other bytes"
    return 0.0


def _same_tensor(want: torch.Tensor, got: torch.Tensor, rtol: float, where: str) -> float:
    a, b = ((x.dtype, tuple(x.shape), x.stride(), x.device, x.requires_grad, x.layout) for x in (want, got))
    assert a == b, f"{where}: {b} instead of {a}"
    if want.dtype == torch.bfloat16:
        want, got = want.float(), got.float()
    return _same_array(want.detach().numpy(), got.detach().numpy(), rtol, where)


def _same_array(want: np.ndarray, got: np.ndarray, rtol: float, where: str) -> float:
    kinds = (got.dtype, got.shape), (want.dtype, want.shape)
    assert kinds[0] == kinds[1], f"{where}: {kinds[0]} instead of {kinds[1]}"
    if want.dtype.kind not in "fc":
        assert np.array_equal(want, got), f"{where}: {got} instead of {want}"
        return 0.0
    assert np.array_equal(np.isfinite(want), np.isfinite(got)), f"{where}: not the same finite"
    want, got = np.nan_to_num(want), np.nan_to_num(got)
    scale = np.maximum(np.maximum(abs(want), abs(got)), SMALL)
    off = (abs(want.astype(complex) - got) / scale).ravel()
    if not off.size or off.max() == 0:
        return 0.0
    at = int(off.argmax())
    place = f"{where}, element {at}: {got.ravel()[at]!r} instead of {want.ravel()[at]!r}"
    assert off.max() <= rtol, f"{place} (off by {off.max():.1e}, allowed {rtol:.0e})"
    return float(off.max())


def _near(want: float, got: float, rtol: float, place: str) -> float:
    if want == got or (math.isnan(want) and math.isnan(got)):
        return 0.0
    off = abs(want - got) / max(abs(want), abs(got), SMALL)
    assert off <= rtol, f"{place} (off by {off:.1e}, allowed {rtol:.0e})"
    return off


def _whole(number: str) -> bool:
    return number.lstrip("-").isdigit()


def _names(folder: Path) -> dict[str, Path]:
    """Files and folders by their names in the folder, with the clock's part taken out."""
    names = {path: CLOCK.sub("TIME", str(path.relative_to(folder))) for path in folder.rglob("*")}
    return {name + "/" * path.is_dir(): path for path, name in names.items()}


def _first_line(want: str, got: str) -> str:
    for number, (a, b) in enumerate(zip(want.splitlines(), got.splitlines(), strict=False), 1):
        if a != b:
            return f"line {number}: {b!r} instead of {a!r}"
    return f"{len(got.splitlines())} lines instead of {len(want.splitlines())}"
