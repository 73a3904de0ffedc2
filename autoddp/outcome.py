"""What became of an act, as data that travels between ranks: a value, or an exception by its name."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autoddp.errors import RemoteError


@dataclass(frozen=True)
class Outcome:
    """A value that JSON can carry, or what was raised."""

    value: Any = None
    error: BaseException | None = None

    @classmethod
    def of(cls, act: Callable[[], Any]) -> Outcome:
        """Do it."""
        try:
            return cls(value=act())
        except Exception as error:
            return cls(error=error)

    def unwrap(self) -> Any:
        """The value; or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value

    def to_data(self) -> dict[str, Any]:
        """For the store: names, numbers and text only."""
        error = self.error
        if error is None:
            return {"value": self.value}
        data: dict[str, Any] = {"error": type(error).__name__, "text": str(error)}
        if isinstance(error, OSError) and error.errno is not None:
            data["os"] = [error.errno, error.strerror, error.filename, error.filename2]
        elif all(isinstance(a, (str, int, float, bool, type(None))) for a in error.args):
            data["args"] = list(error.args)
        return data

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Outcome:
        """The inverse; an exception that is no built-in one becomes a RemoteError with its text."""
        if "error" not in data:
            return cls(value=data["value"])
        if "os" in data:
            number, text, path, other = data["os"]
            return cls(error=OSError(number, text, path, None, other))
        kind = getattr(builtins, data["error"], None)
        if isinstance(kind, type) and issubclass(kind, Exception) and "args" in data:
            return cls(error=kind(*data["args"]))
        return cls(error=RemoteError(f"rank 0: {data['error']}: {data['text']}"))
