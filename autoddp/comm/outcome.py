"""The outcome of a call as data that travels: a value, or an exception by its name."""

from __future__ import annotations

import contextlib
import email
import functools
import io
import itertools
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPMessage
from subprocess import CalledProcessError
from typing import Any
from urllib.error import ContentTooShortError, HTTPError, URLError

from autoddp.errors import RemoteError

RAW, JSON = b"b", b"j"  # the first byte of an outcome that travels
PLAIN = (str, int, float, bool, type(None))  # what of an exception travels


class Shown(str):
    """A text that is shown as it is: str() of a KeyError is the repr() of what it holds."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Outcome:
    """A value that JSON can carry, or an exception that was raised."""

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
        """Return this outcome as a message: bytes as they are, all else as JSON."""
        if isinstance(self.value, bytes):
            return RAW + self.value
        return JSON + json.dumps(self.to_data()).encode()

    @classmethod
    def from_bytes(cls, message: bytes) -> Outcome:
        """Read what `to_bytes` made."""
        if message[:1] == RAW:
            return cls(value=message[1:])
        return cls.from_data(json.loads(message[1:]))

    def to_data(self) -> dict[str, Any]:
        """Return this outcome as names, numbers and text only."""
        error = self.error
        if error is None:
            return {"value": self.value}
        kinds = type(error).__mro__[:-1]
        names = {kind: (kind.__module__, kind.__qualname__) for kind in kinds}
        # another rank finds a class by its name, if that is the name of this very class
        found = [names[kind] for kind in kinds if _kind(*names[kind]) is kind]
        more = {name: x for name, x in vars(error).items() if isinstance(x, PLAIN)}
        module, name = names[type(error)]
        named = {"error": name, "module": module, "text": str(error)}
        return {**named, "found": found, "attributes": more, **_parts(error)}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Outcome:
        """Read what `to_data` made; what cannot be made here becomes a RemoteError."""
        if "error" not in data:
            return cls(value=data["value"])
        return cls(error=_rebuilt(data))


def _parts(error: BaseException) -> dict[str, Any]:
    """Return what an exception is rebuilt from, beside its name and text."""
    if isinstance(error, HTTPError):
        body = error.read() if error.fp is not None else b""
        error.fp = error.file = again = io.BytesIO(body)  # for who handles it on this rank
        vars(error)["read"] = again.read
        return {"http": [error.url, error.code, error.msg, str(error.headers), body.hex()]}
    if isinstance(error, ContentTooShortError):
        return {"args": [str(error.reason)]}
    if isinstance(error, URLError):
        reason = error.reason
        inner = Outcome(error=reason).to_data() if isinstance(reason, BaseException) else None
        return {"reason": inner or str(reason)}
    if isinstance(error, OSError) and error.errno is not None:
        paths = [_name(error.filename), None, _name(error.filename2)]
        named = paths if paths[0] is not None else []
        return {"os": [error.errno, error.strerror, *named]}
    if isinstance(error, CalledProcessError) and isinstance(error.cmd, (str, bytes)):
        return {"program": [error.returncode, os.fsdecode(error.cmd), isinstance(error.cmd, bytes)]}
    if isinstance(error, json.JSONDecodeError):
        return {"json": [error.msg, error.doc, error.pos]}
    if isinstance(error, UnicodeDecodeError):
        return {
            "unicode": [error.encoding, error.object.hex(), error.start, error.end, error.reason]
        }
    if all(isinstance(a, PLAIN) for a in error.args):
        return {"args": list(error.args)}
    return {}


def _rebuilt(data: dict[str, Any]) -> BaseException:
    """Rebuild an exception from what `to_data` and `_parts` made of it."""
    if "http" in data:
        url, code, text, headers, body = data["http"]
        message = email.message_from_string(headers, _class=HTTPMessage)
        return HTTPError(url, code, text, message, io.BytesIO(bytes.fromhex(body)))
    if "reason" in data:
        reason = data["reason"]
        return URLError(reason if isinstance(reason, str) else _rebuilt(reason))
    if "os" in data:
        given = [os.fsencode(x[0]) if isinstance(x, list) else x for x in data["os"]]
        return _made(data, given) or OSError(*given)
    if "program" in data:
        code, cmd, encoded = data["program"]
        return CalledProcessError(code, os.fsencode(cmd) if encoded else cmd)
    if "json" in data:
        return _made(data, data["json"]) or json.JSONDecodeError(*data["json"])
    if "unicode" in data:
        encoding, body, *rest = data["unicode"]
        return UnicodeDecodeError(encoding, bytes.fromhex(body), *rest)
    if data["error"] == "ContentTooShortError" and data["module"] == "urllib.error":
        return ContentTooShortError(data["args"][0], ("", HTTPMessage()))
    made = _made(data, data.get("args", [data["text"]]), [data["text"]], [Shown(data["text"])])
    return made or RemoteError(f"rank 0: {data['error']}: {data['text']}")


def _made(data: dict[str, Any], *given: list[Any]) -> BaseException | None:
    """Make an exception of its class, else of the nearest base of which one says the same text.

    A script can catch it only by a class that this rank has, too.
    """
    for module, name in data["found"]:
        kind = _kind(module, name)
        own = (module, name) == (data["module"], data["error"])
        if kind is None or (kind in (Exception, BaseException) and not own):
            continue
        for args, make in itertools.product(given, (kind, functools.partial(kind.__new__, kind))):
            with contextlib.suppress(Exception):
                made: BaseException = make(*args)
                vars(made).update(data["attributes"])
                if str(made) == data["text"]:
                    return made
    return None


def _kind(module: str, name: str) -> type[BaseException] | None:
    """Return the class of an exception by its name, None if there is none on this rank."""
    kind: Any = sys.modules.get(module)
    for part in name.split("."):
        kind = getattr(kind, part, None)
    return kind if isinstance(kind, type) and issubclass(kind, BaseException) else None


def _name(path: Any) -> Any:
    """Return a path as JSON carries it: one in bytes as a list."""
    if path is None or isinstance(path, (int, str)):
        return path
    return [os.fsdecode(path)] if isinstance(path, bytes) else os.fspath(path)
