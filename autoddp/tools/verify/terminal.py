"""The text that a terminal shows in the end, of all that was written to it."""

from __future__ import annotations

import re

MOVES = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|([\r\n\b])")


def shown(text: str) -> list[str]:
    """Return the lines that are left once carriage returns and the like have been followed.

    A progress bar that was drawn again and again is one line, as it was drawn last.
    """
    if not MOVES.search(text.replace("\n", "")):
        return [line.rstrip() for line in text.splitlines()]
    screen = Screen()
    at = 0
    for move in MOVES.finditer(text):
        screen.write(text[at : move.start()])
        screen.move(move[3] or move[2], move[1] or "")
        at = move.end()
    screen.write(text[at:])
    return [line.rstrip() for line in screen.lines]


class Screen:
    """A screen as long as it takes, with a cursor."""

    def __init__(self) -> None:
        self.lines, self.row, self.column = [""], 0, 0

    def write(self, text: str) -> None:
        """Write a piece of a line over what is at the cursor."""
        line = self.lines[self.row].ljust(self.column)
        end = self.column + len(text)
        self.lines[self.row] = line[: self.column] + text + line[end:]
        self.column = end

    def move(self, what: str, given: str) -> None:
        """Move the cursor, or clear what is around it; colours change nothing."""
        count = int(given) if given.isdigit() else 1
        line = self.lines[self.row]
        if what == "\n":
            self._go(self.row + 1)
            self.column = 0
        elif what in "\rG":
            self.column = 0 if what == "\r" else count - 1
        elif what in "\bD":
            self.column = max(0, self.column - (1 if what == "\b" else count))
        elif what == "C":
            self.column += count
        elif what in "AF":
            self._go(max(0, self.row - count))
        elif what in "BE":
            self._go(self.row + count)
        elif what == "K":
            self.lines[self.row] = "" if given == "2" else line[: self.column]
        elif what == "J":
            self.lines[self.row :] = [line[: self.column]]

    def _go(self, row: int) -> None:
        self.lines += [""] * (row + 1 - len(self.lines))
        self.row = row
