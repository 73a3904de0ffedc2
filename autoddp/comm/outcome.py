"""The outcome of a call as bytes that travel: a value, or an exception."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from typing import Any, NamedTuple
from urllib.error import HTTPError

from autoddp.errors import RemoteError


@dataclass
class Outcome:
    """A value that can be pickled, or an exception that was raised."""

    value: Any = None
    error: BaseException | None = None

    @classmethod
    def of(cls, act: Callable[[], Any]) -> Outcome:
        """Call `act` and keep its outcome, which may be an interrupt or an exit, too."""
        try:
            return cls(value=act())
        except BaseException as error:
            return cls(error=error)

    def unwrap(self) -> Any:
        """Return the value, or raise the error, once.

        The error keeps the frames that it passes, and these may keep this outcome: it lets go of
        the error, or what the script's frames hold would live until the next garbage collection.
        """
        error = self.error
        if error is None:
            return self.value
        self.error = RemoteError(f"{type(error).__name__} was raised before")
        try:
            raise error
        finally:
            del error

    def to_bytes(self) -> bytes:
        """Return this outcome as a message."""
        error = self.error
        if error is None:
            return pickle.dumps((self.value, None, ""))
        return pickle.dumps((None, _forms(error), f"rank 0: {type(error).__name__}: {error}"))

    @classmethod
    def from_bytes(cls, message: bytes) -> Outcome:
        """Read what `to_bytes` made: of an exception, the first form that can be made here."""
        value, forms, text = pickle.loads(message)
        if forms is None:
            return cls(value)
        for form in forms:
            with suppress(Exception):  # a class that rank 0 alone has imported
                return cls(error=pickle.loads(form).made())
        return cls(error=RemoteError(text))


class Form(NamedTuple):
    """The parts from which an exception is made again."""

    kind: type[BaseException]
    given: tuple[Any, ...]
    args: tuple[Any, ...]
    attributes: dict[str, Any]
    text: str

    def made(self) -> BaseException:
        """Make it by its class, else without `__init__`, so that it has the same text."""
        for make in (self.kind, lambda *given: self.kind.__new__(self.kind, *given)):
            with suppress(Exception):
                error: BaseException = make(*self.given)
                error.args = self.args
                vars(error).update(self.attributes)
                if str(error) == self.text:
                    return error
        raise TypeError(f"{self.kind.__name__} cannot be made")


def _forms(error: BaseException) -> list[bytes]:
    """Return forms of an exception for other ranks: of its class, and of its builtin base.

    A script can catch it only by a class that its rank has imported; a builtin one is everywhere.
    """
    own, text = type(error), str(error)
    attributes = {name: x for name, x in vars(error).items() if _is_data(x)}
    given, as_given = _arguments(error), _is_data(error.args)
    forms = [Form(own, given, error.args if as_given else given, attributes, text)]
    builtin = next(kind for kind in own.__mro__ if kind.__module__ == "builtins")
    bases = [] if as_given else [own]
    if builtin not in (own, Exception, BaseException):
        bases.append(builtin)
    forms += [Form(kind, (text,), (text,), attributes, text) for kind in bases]
    found = []
    for form in forms:
        with suppress(Exception):  # a class of a function has no name by which it is found
            found.append(pickle.dumps(form))
    return found


def _arguments(error: BaseException) -> tuple[Any, ...]:
    """Return the arguments for its class."""
    if isinstance(error, HTTPError):
        body = error.read() if error.fp is not None else b""
        error.fp = error.file = again = BytesIO(body)  # for the handler on this rank
        vars(error)["read"] = again.read
        return error.url, error.code, error.msg, error.headers, BytesIO(body)
    reduced = error.__reduce__()
    return reduced[1] if isinstance(reduced, tuple) and _is_data(reduced[1]) else ()


def _is_data(x: Any) -> bool:
    """Return whether `x` is plain data: a file or a batch by rows has no meaning elsewhere."""
    if isinstance(x, (list, tuple)):
        return all(_is_data(each) for each in x)
    return x is None or isinstance(x, (str, bytes, int, float, OSError, os.PathLike))
