"""The outcome of a call as bytes that travel: a value, or an exception."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from typing import Any, NamedTuple
from urllib.error import HTTPError

from autoddp.errors import RemoteError


@dataclass(frozen=True)
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
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value

    def to_bytes(self) -> bytes:
        """Return this outcome as a message."""
        if self.error is None or _is_plain(self.error):
            return pickle.dumps((self.value, self.error, None))
        return pickle.dumps((None, None, list(_forms(self.error))))

    @classmethod
    def from_bytes(cls, message: bytes) -> Outcome:
        """Read what `to_bytes` made: of an exception, the first form that can be made here."""
        value, error, forms = pickle.loads(message)
        if forms is None:
            return cls(value, error)
        for form in forms:
            with suppress(Exception):  # a class that rank 0 alone has imported
                return cls(error=pickle.loads(form).made())
        raise AssertionError("the last form can be made anywhere")


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


def _forms(error: BaseException) -> Iterator[bytes]:
    """Yield forms of an exception for other ranks: its class, then those that it derives from.

    A script can catch it only by a class that its rank has imported; a builtin one is everywhere.
    """
    own, text = type(error), str(error)
    attributes = {name: x for name, x in vars(error).items() if _is_data(x)}
    given = _arguments(error)
    args = error.args if _is_data(error.args) else given
    for kind in own.__mro__:
        if kind is object or (kind is not own and kind in (Exception, BaseException)):
            continue
        for parts in ((given, args), ((text,), (text,))):
            with suppress(Exception):
                form = pickle.dumps(Form(kind, *parts, attributes, text))
                if type(pickle.loads(form).made()) is kind:
                    yield form
                    if kind.__module__ == "builtins":
                        return
                    break
    message = f"rank 0: {own.__name__}: {text}"
    yield pickle.dumps(Form(RemoteError, (message,), (message,), {}, message))


def _arguments(error: BaseException) -> tuple[Any, ...]:
    """Return the arguments for its class."""
    if isinstance(error, HTTPError):
        body = error.read() if error.fp is not None else b""
        error.fp = error.file = again = BytesIO(body)  # for the handler on this rank
        vars(error)["read"] = again.read
        return error.url, error.code, error.msg, error.headers, BytesIO(body)
    reduced = error.__reduce__()
    return reduced[1] if isinstance(reduced, tuple) and _is_data(reduced[1]) else ()


def _is_plain(error: BaseException) -> bool:
    """Return whether an exception is a builtin one that holds only data, which pickle can make.

    Most are: asking whether a file exists raises one where there is none.
    """
    if type(error).__module__ != "builtins" or not _is_data(error.args):
        return False
    return _is_data(error.__reduce__()[1]) and all(map(_is_data, vars(error).values()))


def _is_data(x: Any) -> bool:
    """Return whether `x` is plain data: a file or a batch by rows has no meaning elsewhere."""
    if isinstance(x, (list, tuple)):
        return all(_is_data(each) for each in x)
    return x is None or isinstance(x, (str, bytes, int, float, OSError, os.PathLike))
