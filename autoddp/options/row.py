"""The description of an option."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from autoddp.errors import BadInput

RUN, VERIFY, BENCH, DECORATOR = "run", "verify", "bench", "@distributed"
KEY = "row"  # in the metadata of a dataclass field

# checks by annotation; a bool is not accepted as a number
KINDS: dict[str, Callable[[Any], bool]] = {
    "int": lambda value: type(value) is int,
    "bool": lambda value: type(value) is bool,
    "str": lambda value: isinstance(value, str),
    "None": lambda value: value is None,
    "tuple[str, ...]": lambda value: (
        type(value) is tuple and all(isinstance(name, str) for name in value)
    ),
}
TYPES = {"int": "a whole number", "bool": "yes or no", "str": "text", "tuple[str, ...]": "names"}


@dataclass(frozen=True)
class OptionRow:
    """The description of an option.

    Attributes:
        help: The help text.
        commands: The commands that have the option, and `@distributed`.
        flags: The flags, if they differ from the name.
        choices: The values, the default first; empty if any text is a value.
        minimum: The smallest number.
        maximum: The largest number, above which clocks and sockets would fail; 0 for no limit.
        error: The error for a number below `minimum`.
        default_text: The default on the page of options, if it is not the value.
        metavar: The placeholder after the flag, if it is not the type or the choices.
    """

    help: str
    commands: tuple[str, ...]
    flags: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    minimum: int = 0
    maximum: int = 0
    error: str = ""
    default_text: str = ""
    metavar: str = ""

    def check(self, name: str, value: Any, annotation: str) -> None:
        """Check the type, choice or size of a value.

        Raises:
            BadInput: The value is not allowed.
        """
        kinds = annotation.split(" | ")
        if not any(KINDS[kind](value) for kind in kinds):
            raise BadInput(f"{flag(name)} is {value!r}; it takes {TYPES[kinds[0]]}")
        if self.choices and value not in self.choices:
            raise BadInput(f"{flag(name)} is {value!r}; it takes {', '.join(self.choices)}")
        if self.maximum and value is not None and not self.minimum <= value <= self.maximum:
            reason = self.error if value < self.minimum else f"{self.maximum} at most"
            raise BadInput(f"{flag(name)} is {value}; {reason}")


def option(default: Any, text: str, *commands: str, **more: Any) -> Any:
    """Declare a field of `Options` with its row; `autoddp run` has every option."""
    return field(default=default, metadata={KEY: OptionRow(text, (RUN, *commands), **more)})


def flag(name: str) -> str:
    """Return the flag of an option on the command line."""
    return f"--{name.replace('_', '-')}"
