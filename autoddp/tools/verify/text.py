"""Compare texts line by line: numbers may be off by rounding, all else is the same."""

from __future__ import annotations

import re

from autoddp.tools.verify.findings import OTHER, Difference, Findings
from autoddp.tools.verify.same import SMALL

NUMBER = re.compile(r"(?<![\w.])-?(?:\d+\.?\d*(?:e[+-]?\d+)?|inf|nan)(?![\w])")
CLOCK = re.compile(r"\d{8}-\d{6}")  # a name made by strftime("%Y%m%d-%H%M%S")
SHOWN = 200  # characters of a line that are shown
COARSE = 1e-2  # part of a number that a unit of its last digit may be, if it is to pass as rounding


def compare_text(
    findings: Findings,
    aspect: str,
    name: str,
    texts: tuple[str, str],
    rtol: float,
    last_digit: bool = True,
) -> None:
    """Compare two texts line by line; a line more or less is one difference, and the last.

    An `rtol` of 0 asks for the same characters. Without `last_digit` none may be rounded the other
    way.
    """
    want, got = (CLOCK.sub("TIME", text).splitlines() for text in texts)
    same = True
    for number, (a, b) in enumerate(zip(want, got, strict=False), start=1):
        size = 0.0 if a == b else line_off(a, b, rtol, last_digit)
        findings.add(aspect, size)
        if size > rtol or size == OTHER or (rtol == 0 and a != b):
            same = False
            findings.differs(
                Difference(aspect, f"{name} line {number}", repr(a[:SHOWN]), repr(b[:SHOWN]), size)
            )
    if len(want) != len(got):
        at = min(len(want), len(got))
        a, b = (repr(lines[at][:SHOWN]) if len(lines) > at else "the end" for lines in (want, got))
        findings.differs(Difference(aspect, f"{name} line {at + 1}", a, b, OTHER))
    elif same and rtol == 0 and CLOCK.sub("TIME", texts[0]) != CLOCK.sub("TIME", texts[1]):
        findings.differs(Difference(aspect, f"{name} ends of lines", "one kind", "another", OTHER))


def line_off(want: str, got: str, rtol: float, last_digit: bool = True) -> float:
    """Return how far the numbers of a line are off, `OTHER` if it is another line."""
    if NUMBER.sub("#", want) != NUMBER.sub("#", got):
        return OTHER
    pairs = zip(NUMBER.findall(want), NUMBER.findall(got), strict=True)
    return max((number_off(a, b, rtol, last_digit) for a, b in pairs if a != b), default=0.0)


def number_off(want: str, got: str, rtol: float, last_digit: bool = True) -> float:
    """Return how far two numbers are off, relative to the larger one.

    A whole number that differs is never within `rtol`; a last digit may be rounded the other way.
    """
    a, b = float(want), float(got)
    if a != a or b != b:
        return 0.0 if a != a and b != b else OTHER
    if OTHER in (abs(a), abs(b)):
        return OTHER
    off = abs(a - b) / max(abs(a), abs(b), SMALL)
    if is_whole(want) and is_whole(got):
        return max(off, 2 * rtol)
    digits = len(want.partition(".")[2]) if "e" not in want + got else 0
    unit = 10.0**-digits if digits and len(got.partition(".")[2]) == digits else 0.0
    rounded = abs(a - b) <= 1.001 * unit and unit <= COARSE * max(abs(a), abs(b))
    return min(off, rtol) if rounded and last_digit else off


def is_whole(number: str) -> bool:
    """Return whether a number is written without a point."""
    return number.lstrip("-").isdigit()
