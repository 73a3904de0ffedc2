import configparser
import gc
import io
import json
import os
import ssl
import subprocess
import termios
import weakref
from email.message import Message
from urllib.error import ContentTooShortError, HTTPError, URLError

import pytest
import torch

from autoddp.comm.outcome import Outcome
from autoddp.errors import BadInput, RemoteError


def travelled(outcome):
    return Outcome.from_bytes(outcome.to_bytes())


@pytest.mark.parametrize(
    "value", [None, 1, 0.1, 1e300, "é\ud800", [1, [2, "x"]], (1, {2: None}), b"x"]
)
def test_a_value_travels_unchanged(value):
    assert travelled(Outcome.of(lambda: value)).unwrap() == value


class ValueErrorOfMine(Exception):
    """A class of the script's, which takes other arguments than it hands on."""

    def __init__(self, code, *, where):
        super().__init__(f"{code} at {where}")


ERRORS = [
    ValueError("no", 3),
    KeyboardInterrupt(),
    SystemExit(3),
    OSError(18, "Invalid cross-device link", "a", None, "b"),
    OSError("10 requested and 1 written"),
    PermissionError(13, "Permission denied", b"bytes"),
    io.UnsupportedOperation("not writable"),
    json.JSONDecodeError("Expecting value", "doc", 2),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    subprocess.CalledProcessError(1, ["sleep", "9"]),
    URLError(ConnectionRefusedError(111, "Connection refused")),
    ssl.SSLCertVerificationError(1, "certificate verify failed"),
    ContentTooShortError("retrieval incomplete: got only 3 out of 10 bytes", ("x", Message())),
    termios.error(25, "Inappropriate ioctl for device"),
    configparser.NoSectionError("train"),
    torch.cuda.OutOfMemoryError("out of memory"),
    BadInput("what"),
    ValueErrorOfMine(3, where="home"),
]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_exception_is_rebuilt(error):
    back = travelled(Outcome(error=error)).error
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert repr(back.args) == repr(error.args)


def test_an_http_error_keeps_its_body_for_every_handler():
    headers = Message()
    headers["X-Reason"] = "none"
    error = HTTPError("http://x/y", 404, "Not Found", headers, io.BytesIO(b"body"))
    back = travelled(Outcome(error=error)).error
    assert (back.code, back.url, str(back)) == (404, "http://x/y", "HTTP Error 404: Not Found")
    assert back.headers["X-Reason"] == "none"
    assert (back.read(), error.read()) == (b"body", b"body")


def test_what_no_rank_finds_by_its_name_is_caught_as_what_it_derives_from():
    """A library may import the module of its exceptions on rank 0 alone, which writes."""
    kind = type("ArrowInvalid", (ValueError,), {})
    back = travelled(Outcome(error=kind("no column"))).error
    assert (type(back), str(back)) == (ValueError, "no column")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError({"lr": 1}), ValueError),  # its argument is no plain data
        (Exception(object), Exception),
        (type("Local", (Exception,), {})("own"), RemoteError),
        (type("Decodes", (UnicodeDecodeError,), {})("utf-8", b"", 0, 1, "bad"), RemoteError),
    ],
    ids=["argument", "class", "own", "base"],
)
def test_an_exception_never_arrives_as_a_value(error, kind):
    back = travelled(Outcome(error=error)).error
    assert type(back) is kind
    assert str(error) in str(back)


def test_an_error_that_was_caught_keeps_nothing_alive():
    """As in one process, where a file is closed, and memory is free, when a function returns."""

    class Held:
        """What a frame of the script holds."""

    def asks():
        held, outcome = Held(), Outcome.of(lambda: os.stat("no such file"))
        with pytest.raises(FileNotFoundError):
            outcome.unwrap()
        with pytest.raises(RemoteError, match="FileNotFoundError was raised before"):
            outcome.unwrap()
        return weakref.ref(held)

    gc.collect()
    gc.disable()
    try:
        assert asks()() is None
    finally:
        gc.enable()
