"""The row of an option, from which all that takes or shows it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from autoddp.errors import BadInput

RUN, VERIFY, BENCH, DECORATOR = "run", "verify", "bench", "@distributed"
KEY = "row"  # of a dataclass field's metadata

# by the annotations of `Options`; a number is no bool, though Python's is
KINDS: dict[str, Callable[[Any], bool]] = {
    "int": lambda value: type(value) is int,
    "bool": lambda value: type(value) is bool,
    "str": lambda value: isinstance(value, str),
    "None": lambda value: value is None,
    "tuple[str, ...]": lambda value: (
        type(value) is tuple and all(isinstance(name, str) for name in value)
    ),
}
WORDS = {"int": "a whole number", "bool": "yes or no", "str": "text", "tuple[str, ...]": "names"}


@dataclass(frozen=True)
class OptionRow:
    """The row of an option: what it does, who takes it, and what values it has.

    Attributes:
        says: The help, in sentences that can be read alone.
        takers: The commands that take it, and `@distributed`.
        flags: Its flags, where they are not its name.
        words: The words that it takes, the default first; empty: any.
        least: The smallest number that it takes.
        most: The largest, above which clocks and sockets would fail later; 0: any.
        rule: The error for a number below `least`.
        shown: Its values on the page of options, if not the default and the words.
        takes: The placeholder behind the flag, if not its kind or its words.
    """

    says: str
    takers: tuple[str, ...]
    flags: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    least: int = 0
    most: int = 0
    rule: str = ""
    shown: str = ""
    takes: str = ""

    def check(self, name: str, value: Any, annotation: str) -> None:
        """Check the kind, word or size of a value.

        Raises:
            BadInput: It has another.
        """
        kinds = annotation.split(" | ")
        if not any(KINDS[kind](value) for kind in kinds):
            raise BadInput(f"{flag(name)} is {value!r}; it takes {WORDS[kinds[0]]}")
        if self.words and value not in self.words:
            raise BadInput(f"{flag(name)} is {value!r}; it takes {', '.join(self.words)}")
        if self.most and value is not None and not self.least <= value <= self.most:
            said = self.rule if value < self.least else f"{self.most} at most"
            raise BadInput(f"{flag(name)} is {value}; {said}")


def option(default: Any, says: str, *takers: str, **more: Any) -> Any:
    """Declare a field of `Options` with its row; `autoddp run` takes every option."""
    return field(default=default, metadata={KEY: OptionRow(says, (RUN, *takers), **more)})


def flag(name: str) -> str:
    """Spell an option as the command line has it."""
    return f"--{name.replace('_', '-')}"
