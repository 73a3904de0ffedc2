"""Answers of servers, read once by rank 0: bytes that travel, from which every rank reads."""

from __future__ import annotations

import io
import pickle
from http.client import HTTPResponse, IncompleteRead
from typing import Any
from urllib.error import ContentTooShortError

LIMIT = 64 << 20  # bytes of a body that are handed to the other ranks
CHUNK = 1 << 20


class Received(io.RawIOBase):
    """The part of an answer that came; at its end a reader meets what rank 0 met there."""

    def __init__(self, data: bytes, error: BaseException | None) -> None:
        super().__init__()
        self._data, self._error = io.BytesIO(data), error

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Read what came; then raise rank 0's error, if there was one."""
        size = self._data.readinto(buffer)
        if not size and self._error is not None:
            raise self._error
        return size

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a file of it, as a socket does."""
        return io.BufferedReader(self)


def read(response: Any) -> bytes:
    """Read and pack a response of `urlopen`; return no bytes if it is not to be handed on.

    That is a body of more than `LIMIT`, and what has come from no web server.
    """
    if not isinstance(response, HTTPResponse) or (response.length or 0) > LIMIT:
        response.close()
        return b""
    body, error, length = b"", None, response.length
    with response:
        try:
            while len(body) <= LIMIT and (part := response.read1(CHUNK)):
                body += part
        except (IncompleteRead, OSError) as met:  # the script meets it, after what came before
            body, error = body + getattr(met, "partial", b""), met
    if len(body) > LIMIT:
        return b""
    said = [response.version, response.status, response.reason, length]
    return pickle.dumps([said, response.headers, response.url, body, error])


def answer(packed: bytes) -> HTTPResponse:
    """Return a response that reads what `read` packed, and fails where it failed."""
    (version, status, reason, length), headers, url, body, error = pickle.loads(packed)
    head = f"HTTP/1.{version - 10} {status} {reason}\r\n"
    head += "\r\n" if length is None else f"Content-Length: {length}\r\n\r\n"
    came: Any = Received(head.encode("latin-1") + body, error)  # in place of a socket
    made: Any = HTTPResponse(came)
    made.begin()
    made.headers, made.url, made.msg = headers, url, reason  # as `urlopen` does
    return made


def complete(response: Any) -> Any:
    """Make a response of `urlopen` raise at an early end, where it is read in parts.

    Python takes the end of a connection for that of the body there: half a file would pass for a
    whole.
    """
    read, size = response.read, getattr(response, "length", None)

    def checked(*args: Any) -> Any:
        part, missing = read(*args), getattr(response, "length", None)
        if size and missing and not part and args not in ((), (None,), (0,)):
            said = f"retrieval incomplete: got only {size - missing} out of {size} bytes"
            raise ContentTooShortError(said, ("", response.headers))
        return part

    response.read = checked
    return response


def read_requests(response: Any) -> bytes:
    """Pack a `requests.Response`; return no bytes if its body is more than `LIMIT`."""
    body = b""
    with response:
        for part in response.iter_content(CHUNK):
            body += part
            if len(body) > LIMIT:
                return b""
    response._content = body
    return pickle.dumps(response)


def answer_requests(packed: bytes, session: Any) -> Any:
    """Return the response that `read_requests` packed; the session learns its cookies."""
    made = pickle.loads(packed)
    made.raw = io.BytesIO(made.content)
    for response in (*made.history, made):
        session.cookies.update(response.cookies)
    return made
