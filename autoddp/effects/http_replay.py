"""Answers of servers, packed as bytes that travel between ranks, and rebuilt as objects."""

from __future__ import annotations

import email
import io
import json
import sys
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from http.client import HTTPMessage, IncompleteRead
from typing import Any
from urllib.error import ContentTooShortError
from urllib.response import addinfourl

from autoddp.comm.outcome import Outcome

LIMIT = 64 << 20  # bytes of a body that are handed to the other ranks
CHUNK = 1 << 20
UNKNOWN = -1


class ReplayedBody(io.BytesIO):
    """The part of a body that came; whoever reads to its end meets what rank 0 met there."""

    def __init__(self, body: bytes, missing: int, error: BaseException | None) -> None:
        super().__init__(body)
        self._missing, self._error = missing, error

    def read(self, size: int | None = -1, /) -> bytes:
        """Read up to `size` bytes, or all that came.

        Raises:
            IncompleteRead: All was asked for, and a part of the body is missing.
            OSError: Rank 0 met it where the body ends.
        """
        part = super().read(size)
        if size is None or size < 0:
            if self._missing:
                raise IncompleteRead(part, None if self._missing == UNKNOWN else self._missing)
            self._end()
        elif size and not part:
            self._end()
        return part

    def readline(self, size: int | None = -1, /) -> bytes:
        """Read a line; at the end of the body, raise the error that rank 0 met there."""
        line = super().readline(size)
        if not line:
            self._end()
        return line

    def __next__(self) -> bytes:
        line = self.readline()
        if not line:
            raise StopIteration
        return line

    def _end(self) -> None:
        if self._error is not None:
            raise self._error


class ReplayedResponse(addinfourl):
    """A response of `urlopen` that was read already."""

    def __init__(
        self, body: ReplayedBody, headers: HTTPMessage, url: str, code: int | None, reason: str
    ) -> None:
        super().__init__(body, headers, url, code)
        self.reason = self.msg = reason
        self.length = len(body.getbuffer())

    def getheader(self, name: str, default: str | None = None) -> str | None:
        """Return the values of one header, joined by commas, or `default`."""
        values = self.headers.get_all(name)
        return ", ".join(values) if values else default

    def getheaders(self) -> list[tuple[str, str]]:
        """Return all headers, as pairs of name and value."""
        return list(self.headers.items())


def read(response: Any) -> bytes:
    """Read and pack a response of `urlopen`; return no bytes if its body is more than `LIMIT`."""
    body, outcome, expected = bytearray(), Outcome(), getattr(response, "length", None)
    with response:
        length = response.headers.get("Content-Length", "")
        if length.isdecimal() and (len(length) > 18 or int(length) > LIMIT):
            return b""
        try:
            while len(body) <= LIMIT and (part := response.read1(CHUNK)):
                body += part
            missing = 0 if expected is None else expected - len(body)
        except IncompleteRead as error:  # a body in chunks does not tell how much is missing
            body, missing = body + error.partial, UNKNOWN
        except OSError as error:  # the script meets the error when it reads, after what came before
            outcome, missing = Outcome(error=error), 0
        if len(body) > LIMIT:
            return b""
        reason = str(getattr(response, "reason", ""))
        facts = [
            response.url,
            response.status,
            str(response.headers),
            reason,
            missing,
            outcome.to_data(),
        ]
        return pack(facts, bytes(body))


def complete(response: Any) -> Any:
    """Make a response of `urlopen` raise at an early end, where a library reads it in parts.

    Python takes the end of a connection for that of the body when it reads a part: half a file
    would pass for a whole.
    """
    read = response.read

    def checked(*args: Any) -> Any:
        part = read(*args)
        missing = getattr(response, "length", None)
        if missing and not part and args not in ((), (None,), (0,)):
            raise ContentTooShortError(
                f"retrieval incomplete: {missing} bytes of {response.url} are missing",
                ("", response.headers),
            )
        return part

    response.read = checked
    return response


def answer(packed: bytes) -> ReplayedResponse:
    """Rebuild the response that `read` packed."""
    (url, code, headers, reason, missing, end), body = unpack(packed)
    kept = ReplayedBody(body, missing, Outcome.from_data(end).error)
    return ReplayedResponse(
        kept, email.message_from_string(headers, _class=HTTPMessage), url, code, reason
    )


def read_requests(response: Any) -> bytes:
    """Pack a `requests.Response`; return no bytes if its body is more than `LIMIT`."""
    with response:
        body = b"".join(_up_to(LIMIT, response))
    if len(body) > LIMIT:
        return b""
    return pack([_facts(response), [_facts(before) for before in response.history]], body)


def answer_requests(packed: bytes, session: Any = None) -> Any:
    """Rebuild the response that `read_requests` packed; a session learns its cookies."""
    (facts, history), body = unpack(packed)
    made = _rebuilt(facts, body)
    made.history = [_rebuilt(before, b"") for before in history]
    for response in (*made.history, made) if session is not None else ():
        session.cookies.update(response.cookies)
    return made


def _facts(response: Any) -> list[Any]:
    asked = response.request
    return [
        [response.url, response.status_code, response.reason, response.encoding],
        list(response.headers.items()),
        [[c.name, c.value, c.domain, c.path] for c in response.cookies],
        response.elapsed.total_seconds(),
        [asked.method, asked.url, list(asked.headers.items())],
    ]


def _rebuilt(facts: list[Any], body: bytes) -> Any:
    requests = sys.modules["requests"]
    named, headers, cookies, seconds, (method, url, sent) = facts
    made = requests.models.Response()
    made.url, made.status_code, made.reason, made.encoding = named
    made.headers = requests.structures.CaseInsensitiveDict(headers)
    for name, value, domain, path in cookies:
        made.cookies.set(name, value, domain=domain, path=path)
    made.elapsed = timedelta(seconds=seconds)
    made.request = requests.models.PreparedRequest()
    made.request.method, made.request.url = method, url
    made.request.headers = requests.structures.CaseInsensitiveDict(sent)
    made.raw, made._content, made._content_consumed = io.BytesIO(body), body, True
    return made


def pack(facts: list[Any], body: bytes) -> bytes:
    """Write `facts` as a line of JSON, then the body."""
    return json.dumps(facts).encode() + b"\n" + body


def unpack(packed: bytes) -> tuple[list[Any], bytes]:
    """Read the facts and the body that `pack` wrote."""
    line, _, body = packed.partition(b"\n")
    return json.loads(line), body


def name_of(url: Any) -> str:
    """Return the address of `url`, which may be a `Request`."""
    return url.full_url if isinstance(url, urllib.request.Request) else str(url)


def _up_to(limit: int, response: Any) -> Iterator[bytes]:
    size = 0
    for chunk in response.iter_content(1 << 20):
        yield chunk
        size += len(chunk)
        if size > limit:
            return
