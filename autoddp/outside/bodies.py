"""What a server answered, as bytes that travel between ranks, and as the object that asks for it."""

from __future__ import annotations

import email
import io
import json
import sys
import urllib.request
from http.client import HTTPMessage
from typing import Any
from urllib.response import addinfourl

LIMIT = 64 << 20  # bytes of a body that are handed to the other ranks


class Answer(addinfourl):
    """A response of `urlopen` that was read already."""

    def __init__(self, body: bytes, headers: HTTPMessage, url: str, code: int | None, reason: str) -> None:
        super().__init__(io.BytesIO(body), headers, url, code)
        self.reason = self.msg = reason
        self.length = len(body)

    def getheader(self, name: str, default: str | None = None) -> str | None:
        """One header."""
        values = self.headers.get_all(name)
        return ", ".join(values) if values else default

    def getheaders(self) -> list[tuple[str, str]]:
        """All headers."""
        return list(self.headers.items())


def read(response: Any) -> bytes:
    """A response of `urlopen`, read and packed; empty if it is more than `LIMIT`."""
    with response:
        length = response.headers.get("Content-Length", "0")
        body = b"" if length.isdigit() and int(length) > LIMIT else response.read(LIMIT + 1)
        if len(body) > LIMIT or (not body and length.isdigit() and int(length) > LIMIT):
            return b""
        reason = str(getattr(response, "reason", ""))
        return pack([response.url, response.status, str(response.headers), reason], body)


def answer(packed: bytes) -> Answer:
    """The inverse."""
    (url, code, headers, reason), body = unpack(packed)
    return Answer(body, email.message_from_string(headers, _class=HTTPMessage), url, code, reason)


def read_requests(response: Any) -> bytes:
    """A `requests.Response`, packed; empty if it is more than `LIMIT`."""
    with response:
        body = b"".join(_up_to(LIMIT, response))
    if len(body) > LIMIT:
        return b""
    facts = [response.url, response.status_code, list(response.headers.items())]
    return pack([*facts, response.reason, response.encoding], body)


def answer_requests(packed: bytes) -> Any:
    """The inverse."""
    requests = sys.modules["requests"]
    (url, code, headers, reason, encoding), body = unpack(packed)
    made = requests.models.Response()
    made.url, made.status_code, made.reason, made.encoding = url, code, reason, encoding
    made.headers = requests.structures.CaseInsensitiveDict(headers)
    made.raw, made._content, made._content_consumed = io.BytesIO(body), body, True
    return made


def pack(facts: list[Any], body: bytes) -> bytes:
    """A line of JSON, and the body."""
    return json.dumps(facts).encode() + b"\n" + body


def unpack(packed: bytes) -> tuple[list[Any], bytes]:
    """The inverse."""
    line, _, body = packed.partition(b"\n")
    return json.loads(line), body


def name_of(url: Any) -> str:
    """The address that is asked for."""
    return url.full_url if isinstance(url, urllib.request.Request) else str(url)


def _up_to(limit: int, response: Any) -> Any:
    size = 0
    for chunk in response.iter_content(1 << 20):
        yield chunk
        size += len(chunk)
        if size > limit:
            return
