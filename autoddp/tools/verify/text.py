"""Compare texts line by line: numbers may be off by rounding, all else is the same."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import chain, repeat

from autoddp.tools.verify.findings import OTHER, SMALL, Difference

NUMBER = re.compile(r"(?<![\w.])-?(?:\d+\.?\d*(?:e[+-]?\d+)?|inf|nan)(?![\w])")
WORD = re.compile(r"[^\s,;=|<>()\[\]{}\"']+|\s+|.")  # a time or a rate is one word: 00:03, 1.2s/it
SHOWN = 200  # characters of a line that are shown
COARSE = 1e-2  # part of a number that a unit of its last digit may be, if it is to pass as rounding
Lines = Sequence[str]


def compare_lines(
    aspect: str,
    name: str,
    texts: tuple[Lines, Lines],
    rtol: float,
    last_digit: bool = True,
    twice: tuple[Lines, Lines] = ((), ()),
) -> Iterator[Difference]:
    """Yield the lines of two texts; a line more or less is one difference, and the last.

    With `last_digit` the last digit may be rounded the other way. `twice` are the lines of two runs
    of one process: what they do not share is not compared.
    """
    want, got = texts
    models = chain(zip(*twice, strict=False), repeat(("", "")))
    for at, (a, b, model) in enumerate(zip(want, got, models, strict=False), start=1):
        size = 0.0 if a == b else line_off(a, b, rtol, last_digit, model)
        yield Difference(aspect, f"{name} line {at}", repr(a[:SHOWN]), repr(b[:SHOWN]), size)
    if len(want) != len(got) and len(twice[0]) == len(twice[1]):
        at = min(len(want), len(got))
        a, b = (repr(lines[at][:SHOWN]) if len(lines) > at else "the end" for lines in texts)
        yield Difference(aspect, f"{name} line {at + 1}", a, b, OTHER)


def line_off(
    want: str, got: str, rtol: float, last_digit: bool = True, twice: tuple[str, str] = ("", "")
) -> float:
    """Return how far the numbers of a line are off, `OTHER` if it is another line."""
    numbers = [NUMBER.findall(line) for line in (want, got)]
    if twice[0] != twice[1] and line_off(*twice, rtol) > rtol:
        form = repeated(*twice)
        found = [form.fullmatch(line) for line in (want, got)]
        if not all(found):
            return OTHER
        numbers = [list(match.groups()) for match in found if match]
    elif NUMBER.sub("#", want) != NUMBER.sub("#", got):
        return OTHER
    pairs = zip(*numbers, strict=True)
    return max((number_off(a, b, rtol, last_digit) for a, b in pairs), default=0.0)


def repeated(one: str, again: str) -> re.Pattern[str]:
    """Return the form of a line that one process wrote twice: where it differs, all is right.

    A clock's readings, rates and process numbers are other ones each time. The numbers that both
    lines have are the groups of the form.
    """
    words, form = WORD.findall(one), ""
    matcher = SequenceMatcher(None, words, WORD.findall(again), autojunk=False)
    for what, start, end, *_ in matcher.get_opcodes():
        between = map(re.escape, NUMBER.split("".join(words[start:end])))
        form += f"({NUMBER.pattern})".join(between) if what == "equal" else ".*?"
    return re.compile(form, re.DOTALL)


def number_off(want: str, got: str, rtol: float, last_digit: bool = True) -> float:
    """Return how far two numbers are off, relative to the larger one.

    A whole number that differs is never within `rtol`; a last digit may be rounded the other way.
    """
    a, b = float(want), float(got)
    if want == got or (a != a and b != b):
        return 0.0
    if a != a or b != b or OTHER in (abs(a), abs(b)):
        return OTHER
    off = abs(a - b) / max(abs(a), abs(b), SMALL)
    if not set(".e").intersection(want + got):
        return max(off, 2 * rtol)
    digits = len(want.partition(".")[2]) if "e" not in want + got else 0
    unit = 10.0**-digits if digits and len(got.partition(".")[2]) == digits else 0.0
    rounded = abs(a - b) <= 1.001 * unit and unit <= COARSE * max(abs(a), abs(b))
    return min(off, rtol) if rounded and last_digit else off
