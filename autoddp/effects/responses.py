"""Responses of web servers on all ranks: the head is sent from rank 0 at once, the body as read.

What a client does with a response (redirects, cookies, decoding) runs on every rank.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from http.client import HTTPResponse
from types import SimpleNamespace
from typing import Any, NamedTuple

from autoddp.effects.pipes import Ask, SharedStream
from autoddp.patching import Call

SIZE = 1 << 16  # bytes that a small read takes from rank 0


class Kind(NamedTuple):
    """The responses of one client.

    Attributes:
        head: Returns what rank 0 sends to the others of its response.
        response: Returns this rank's response: rank 0's own, or one made of that head. Its body is
            read by an `Ask`.
    """

    head: Callable[[Any], Any]
    response: Callable[[Any, Any, Ask, Call], Any]


def _head(own: HTTPResponse) -> dict[str, Any]:
    """Return the state of a response of `http.client`, which urllib and urllib3 use."""
    return {**vars(own), "fp": own.fp and True}


def _response(own: HTTPResponse | None, head: dict[str, Any], ask: Ask, *_: Any) -> Any:
    stream = io.BytesIO() if own is None else own.fp
    if own is None:
        own = HTTPResponse.__new__(HTTPResponse)
        vars(own).update(head)
    if head["fp"]:  # not closed, as one without a body is
        own.fp = io.BufferedReader(SharedStream(stream, ask), SIZE)
    return own


def _pool_head(own: Any) -> tuple[Any, ...]:
    """Return the parts of a response of urllib3, with its body if that was read already."""
    named = {
        name: getattr(own, name)
        for name in ("headers", "status", "version", "reason", "decode_content", "retries")
    }
    return named, own.data if own.closed else None, _head(own._original_response)


def _pool_response(own: Any, head: tuple[Any, ...], ask: Ask, *_: Any) -> Any:
    named, body, below = head
    original = _response(own and own._original_response, below, ask)
    if own is not None:
        return own
    more = {"original_response": original, "request_method": original._method}
    response = sys.modules["urllib3"].HTTPResponse(original, preload_content=False, **named, **more)
    response._body = body
    return response


def _session_response(own: Any, head: tuple[Any, ...], ask: Ask, call: Call) -> Any:
    raw = _pool_response(own and own.raw, head, ask)
    return own or call.instance.build_response(call.named["request"], raw)


def _client_head(own: Any) -> tuple[Any, ...]:
    """Return the parts of a response of httpx; its other extensions are of the connection."""
    known = ("http_version", "reason_phrase")
    extensions = {name: own.extensions[name] for name in known if name in own.extensions}
    return own.status_code, own.headers.raw, extensions


def _client_response(own: Any, head: tuple[Any, ...], ask: Ask, call: Call) -> Any:
    httpx, (status, headers, extensions) = sys.modules[call.target.partition(".")[0]], head
    stream: Any = SimpleNamespace(close=lambda: None) if own is None else own.stream
    chunks = iter(() if own is None else stream)

    class Body(httpx.SyncByteStream):  # type: ignore[name-defined]
        def __iter__(self) -> Iterator[bytes]:
            while (chunk := ask(lambda: next(chunks, None))) is not None:
                yield chunk

        def close(self) -> None:
            stream.close()

    if own is None:
        return httpx.Response(status, headers=headers, stream=Body(), extensions=extensions)
    own.stream = Body()
    return own


_CLIENT = Kind(_client_head, _client_response)
KINDS = {
    "urllib.request:AbstractHTTPHandler.do_open": Kind(_head, _response),
    "urllib3.connectionpool:HTTPConnectionPool.urlopen": Kind(_pool_head, _pool_response),
    "requests.adapters:HTTPAdapter.send": Kind(lambda own: _pool_head(own.raw), _session_response),
    "httpx._transports.default:HTTPTransport.handle_request": _CLIENT,
    "httpx2._transports.default:HTTPTransport.handle_request": _CLIENT,
}
