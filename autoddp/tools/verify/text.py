"""Compare texts line by line: numbers may differ by rounding, all else must be equal."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import chain, repeat, zip_longest

from autoddp.tools.verify.findings import OTHER, SMALL, Difference

REAL = r"(?:\d+\.?\d*(?:e[+-]?\d+)?|inf|nan)"
# a complex number is one number: its small part is rounding to the large one
NUMBER = re.compile(rf"(?<![\w.])-?{REAL}(?:(?:[+-]{REAL})?j)?(?!\w)")
PADDED = re.compile(rf"\s*{NUMBER.pattern}\s*")  # arrays are printed with aligned columns
WORD = re.compile(r"[^\s,;=|<>()\[\]{}\"']+|\S")  # a time or a rate is one word: 00:03, 1.2s/it
MOVES = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|([\r\n\b])")  # moves of a cursor, and colours
SHOWN, BEFORE = 60, 20  # characters shown of a line, and how many of them before a difference
COARSE = 1e-2  # a unit of the last digit counts as rounding up to this part of the number
Lines = Sequence[str]


def compare_lines(
    aspect: str,
    name: str,
    texts: tuple[Lines, Lines],
    rtol: float,
    last_digit: bool = True,
    known: Sequence[Lines] = (),
) -> Iterator[Difference]:
    """Yield a difference for each line of two texts, and one if they have different lengths.

    With `last_digit`, the last digit of a number and its padding may differ. `known` are the lines
    of two runs of one process; words that differ between them are skipped.
    """
    want, got = texts
    pairs = chain(zip_longest(*known, fillvalue=""), repeat(("", "")))
    for at, (a, b, pair) in enumerate(zip(want, got, pairs, strict=False), start=1):
        size = 0.0 if a == b else line_off(a, b, rtol, last_digit, pair)
        first = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
        x, y = (repr(line[max(0, first - BEFORE) :][:SHOWN]) for line in (a, b))
        yield Difference(aspect, f"{name} line {at}", x, y, size)
    if len(want) != len(got) and len({len(lines) for lines in known}) < 2:
        at = min(len(want), len(got))
        a, b = (repr(lines[at][:SHOWN]) if len(lines) > at else "the end" for lines in texts)
        yield Difference(aspect, f"{name} line {at + 1}", a, b, OTHER)


def line_off(
    want: str, got: str, rtol: float, last_digit: bool = True, known: Lines = ("", "")
) -> float:
    """Return the relative difference of the numbers in two lines, `OTHER` if the text differs.

    Words that differ between the `known` lines of two runs of one process are skipped, such as
    times, rates and process ids.
    """
    if word_off(known[0], known[1], rtol) <= rtol:
        return word_off(want, got, rtol, last_digit)
    wanted, words, *models = (WORD.findall(line) for line in (want, got, *known))
    if {len(wanted)} != {len(model) for model in models}:  # it is unknown which words change
        return 0.0
    if len(wanted) != len(words):
        return OTHER
    pairs = ((a, b) for a, b, x, y in zip(wanted, words, *models, strict=True) if x == y)
    return max((word_off(a, b, rtol, last_digit) for a, b in pairs), default=0.0)


def word_off(want: str, got: str, rtol: float, last_digit: bool = True) -> float:
    """Return the relative difference of the numbers in two texts, `OTHER` if all else differs."""
    form = PADDED if last_digit else NUMBER
    if form.sub("#", want) != form.sub("#", got):
        return OTHER
    pairs = zip(NUMBER.findall(want), NUMBER.findall(got), strict=True)
    return max((number_off(a, b, rtol, last_digit) for a, b in pairs), default=0.0)


def number_off(want: str, got: str, rtol: float, last_digit: bool) -> float:
    """Return the difference of two numbers, real or complex, relative to the larger one.

    The difference of two whole numbers that are not equal always exceeds `rtol`.
    """
    a, b = complex(want), complex(got)
    both = (a.real, b.real), (a.imag, b.imag)
    # a part that is infinite or nan in both is equal, and the other one is compared alone
    parts = [(x, y) for x, y in both if math.isfinite(x) or str(x) != str(y)]
    if want == got or all(x == y for x, y in parts):
        return 0.0
    if not all(map(math.isfinite, chain(*parts))):
        return OTHER
    size = max(math.hypot(*column) for column in zip(*parts, strict=True))
    off = math.hypot(*(x - y for x, y in parts)) / max(size, SMALL)
    if not set(".e").intersection(want + got):
        return max(off, 2 * rtol)
    digits = decimals(want)
    unit = 10.0**-digits if digits and decimals(got) == digits else 0.0
    most = max(abs(x - y) for x, y in parts)
    rounded = most <= 1.001 * unit and unit <= COARSE * size
    return min(off, rtol) if rounded and last_digit else off


def decimals(number: str) -> int:
    """Return the digits behind the point, 0 for a number with an exponent."""
    behind = number.rstrip("j").rpartition(".")[2]
    return len(behind) if "." in number and "e" not in number else 0


def shown(text: str) -> list[str]:
    """Return the lines that a terminal finally shows: of a progress bar, the last state."""
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
