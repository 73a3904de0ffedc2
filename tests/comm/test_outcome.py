import binascii
import configparser
import io
import json
import pickle
import shutil
import socket
import ssl
import subprocess
import termios
import zipfile
import zlib
from email.message import Message
from urllib.error import ContentTooShortError, HTTPError, URLError

import pytest
import torch

from autoddp.comm.outcome import Outcome
from autoddp.errors import BadInput, Disagreement, RemoteError


def travelled(outcome):
    return Outcome.from_bytes(outcome.to_bytes())


@pytest.mark.parametrize(
    "value", [None, 1, 0.1, 1e300, "é\ud800", [1, [2, "x"]], (1, {2: None}), b"x"]
)
def test_a_value_travels_unchanged(value):
    assert travelled(Outcome.of(lambda: value)).unwrap() == value


ERRORS = [
    ValueError("no", 3),
    Exception("of no class of its own"),
    KeyError("k"),
    StopIteration(),
    KeyboardInterrupt(),
    SystemExit(3),
    FileNotFoundError(2, "No such file", "a"),
    OSError(18, "Invalid cross-device link", "a", None, "b"),
    OSError(27, "File too large"),
    OSError("10 requested and 1 written"),
    PermissionError(13, "Permission denied", b"bytes"),
    TimeoutError("timed out"),
    io.UnsupportedOperation("not writable"),
    json.JSONDecodeError("Expecting value", "doc", 2),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    subprocess.CalledProcessError(3, b"exit 3\n"),
    subprocess.CalledProcessError(-2, "sleep 9"),
    subprocess.CalledProcessError(1, ["sleep", "9"]),
    pickle.PicklingError("cannot pickle"),
    shutil.SameFileError("a and b are the same file"),
    zipfile.BadZipFile("no zip"),
    URLError("why"),
    URLError(ConnectionRefusedError(111, "Connection refused")),
    socket.gaierror(-2, "Name or service not known"),
    ssl.SSLCertVerificationError(1, "certificate verify failed"),
    ContentTooShortError("retrieval incomplete: got only 3 out of 10 bytes", ("x", Message())),
    termios.error(25, "Inappropriate ioctl for device"),
    zlib.error("Error -3 while decompressing data"),
    binascii.Error("Incorrect padding"),
    configparser.NoSectionError("train"),
    torch.cuda.OutOfMemoryError("out of memory"),
    BadInput("what"),
    Disagreement("where"),
]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_exception_is_rebuilt(error):
    back = travelled(Outcome(error=error)).error
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert repr(back.args) == repr(error.args)


@pytest.mark.parametrize("reason", [socket.gaierror(-2, "no"), ssl.SSLError(1, "wrong version")])
def test_why_an_address_cannot_be_opened_is_told_by_its_class(reason):
    back = travelled(Outcome(error=URLError(reason))).error.reason
    assert (type(back), str(back), back.errno) == (type(reason), str(reason), reason.errno)


def test_an_http_error_keeps_its_body_for_every_handler():
    headers = Message()
    headers["X-Reason"] = "none"
    error = HTTPError("http://x/y", 404, "Not Found", headers, io.BytesIO(b"body"))
    back = travelled(Outcome(error=error)).error
    assert (back.code, back.url, str(back)) == (404, "http://x/y", "HTTP Error 404: Not Found")
    assert back.headers["X-Reason"] == "none"
    assert (back.read(), error.read()) == (b"body", b"body")


class ValueErrorOfMine(Exception):
    """A class of the script's, which takes other arguments than it hands on."""

    def __init__(self, code, *, where):
        super().__init__(f"{code} at {where}")


def test_a_class_of_the_scripts_is_caught_as_such_on_all_ranks():
    back = travelled(Outcome(error=ValueErrorOfMine(3, where="home"))).error
    assert (type(back), str(back), back.args) == (ValueErrorOfMine, "3 at home", ("3 at home",))


class LostFile(OSError):
    """A class that has more to tell than the system."""

    def __init__(self, number, where):
        super().__init__(number, "lost")
        self.where = where


class Status(Exception):
    """A class that says what it only knows after `__init__`."""

    def __init__(self, *, code):
        self.code = code

    def __str__(self):
        return f"status {self.code}"


@pytest.mark.parametrize("error", [LostFile(5, "home"), Status(code=404)], ids=repr)
def test_what_a_class_of_the_scripts_tells_beside_its_text_is_told_on_all_ranks(error):
    back = travelled(Outcome(error=error)).error
    assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))


def test_what_no_rank_finds_by_its_name_is_caught_as_what_it_derives_from():
    """A library may import the module of its exceptions on rank 0 alone, which writes."""
    kind = type("ArrowInvalid", (ValueError,), {})
    back = travelled(Outcome(error=kind("no column"))).error
    assert (type(back), str(back)) == (ValueError, "no column")


class Quiet(Exception):
    """A class whose text is made of what does not travel."""

    def __init__(self, *, where):
        self.where = where

    def __str__(self):
        return self.where()


def test_what_cannot_be_made_of_its_arguments_is_told_by_its_text():
    back = travelled(Outcome(error=Quiet(where=lambda: "home"))).error
    assert (type(back), str(back)) == (RemoteError, "rank 0: Quiet: home")


@pytest.mark.parametrize("name", ["ValueErrorOfMine", "ValueError", "KeyboardInterrupt"])
def test_an_exception_of_the_script_is_told_by_its_text_whatever_it_is_called(name):
    kind = type(name, (Exception,), {})
    back = travelled(Outcome(error=kind("why"))).error
    assert type(back) is RemoteError
    assert str(back) == f"rank 0: {name}: why"
