"""Compare texts line by line: numbers may be off by rounding, all else must be equal."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import chain, repeat, zip_longest

from autoddp.tools.verify.findings import OTHER, SMALL, Difference

NUMBER = re.compile(r"(?<![\w.])-?(?:\d+\.?\d*(?:e[+-]?\d+)?|inf|nan)(?![\w])")
PADDED = re.compile(rf"\s*{NUMBER.pattern}\s*")  # arrays are printed with aligned columns
WORD = re.compile(r"[^\s,;=|<>()\[\]{}\"']+|\S")  # a time or a rate is one word: 00:03, 1.2s/it
MOVES = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|([\r\n\b])")  # of a cursor; colours move nothing
SHOWN, BEFORE = 60, 20  # characters of a line that are shown, and those of them that are equal
COARSE = 1e-2  # part of a number that a unit of its last digit is at most, to pass as rounding
Lines = Sequence[str]


def compare_lines(
    aspect: str,
    name: str,
    texts: tuple[Lines, Lines],
    rtol: float,
    last_digit: bool = True,
    known: Sequence[Lines] = (),
) -> Iterator[Difference]:
    """Yield a difference for each line of two texts, and one where a text ends before the other.

    With `last_digit` the last digit of a number may be rounded the other way, and its padding may
    differ. `known` are the lines of two runs of one process: what they do not repeat is left out.
    """
    want, got = texts
    pairs = chain(zip_longest(*known, fillvalue=""), repeat(("", "")))
    for at, (a, b, pair) in enumerate(zip(want, got, pairs, strict=False), start=1):
        size = 0.0 if a == b else line_off(a, b, rtol, last_digit, pair)
        equal = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
        x, y = (repr(line[max(0, equal - BEFORE) :][:SHOWN]) for line in (a, b))
        yield Difference(aspect, f"{name} line {at}", x, y, size)
    if len(want) != len(got) and len({len(lines) for lines in known}) < 2:
        at = min(len(want), len(got))
        a, b = (repr(lines[at][:SHOWN]) if len(lines) > at else "the end" for lines in texts)
        yield Difference(aspect, f"{name} line {at + 1}", a, b, OTHER)


def line_off(
    want: str, got: str, rtol: float, last_digit: bool = True, known: Lines = ("", "")
) -> float:
    """Return how far the numbers of a line are off, `OTHER` if it is another line.

    Words that differ between the `known` lines of two runs of one process are left out: readings
    of clocks, rates and process numbers.
    """
    if word_off(known[0], known[1], rtol) <= rtol:
        return word_off(want, got, rtol, last_digit)
    words, ours, *models = (WORD.findall(line) for line in (want, got, *known))
    if {len(words)} != {len(model) for model in models}:  # nothing says which words are repeated
        return 0.0
    if len(words) != len(ours):
        return OTHER
    kept = ((a, b) for a, b, x, y in zip(words, ours, *models, strict=True) if x == y)
    return max((word_off(a, b, rtol, last_digit) for a, b in kept), default=0.0)


def word_off(want: str, got: str, rtol: float, last_digit: bool = True) -> float:
    """Return how far the numbers in two texts are off, `OTHER` if there is anything else."""
    form = PADDED if last_digit else NUMBER
    if form.sub("#", want) != form.sub("#", got):
        return OTHER
    pairs = zip(NUMBER.findall(want), NUMBER.findall(got), strict=True)
    return max((number_off(a, b, rtol, last_digit) for a, b in pairs), default=0.0)


def number_off(want: str, got: str, rtol: float, last_digit: bool) -> float:
    """Return how far two numbers are off, relative to the larger one.

    Two whole numbers that differ are never within `rtol`.
    """
    a, b = float(want), float(got)
    if want == got or (a != a and b != b):
        return 0.0
    if not (math.isfinite(a) and math.isfinite(b)):
        return OTHER
    off = abs(a - b) / max(abs(a), abs(b), SMALL)
    if not set(".e").intersection(want + got):
        return max(off, 2 * rtol)
    digits = len(want.partition(".")[2]) if "e" not in want + got else 0
    unit = 10.0**-digits if digits and len(got.partition(".")[2]) == digits else 0.0
    rounded = abs(a - b) <= 1.001 * unit and unit <= COARSE * max(abs(a), abs(b))
    return min(off, rtol) if rounded and last_digit else off


def shown(text: str) -> list[str]:
    """Return the lines that a terminal shows in the end: of a progress bar, its last state."""
    lines, row, column, at = [""], 0, 0, 0
    for move in chain(MOVES.finditer(text), [None]):
        piece = text[at : move.start() if move else None]
        line, end = lines[row].ljust(column), column + len(piece)
        lines[row], column = line[:column] + piece + line[end:], end
        if move is None:
            break
        at, what = move.end(), move[3] or move[2]
        count = int(move[1]) if move[1] and move[1].isdigit() else 1
        if what in "\nA":
            row = max(0, row - count) if what == "A" else row + 1
            lines += [""] * (row + 1 - len(lines))
        if what in "\n\r":
            column = 0
        elif what == "\b":
            column = max(0, column - 1)
        elif what == "K":
            lines[row] = "" if move[1] == "2" else lines[row][:column]
    while lines and not lines[-1].strip():
        lines.pop()
    return [line.rstrip() for line in lines]
