"""Requests of a job, and its results if a server fails, equal those of one process."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import threading
import urllib.error
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from autoddp.effects.downloads import Downloads
from autoddp.effects.files import Files
from tests.effects.outward import on_ranks

BODY = b"line one\nline two\nthe rest of it"


class Handler(BaseHTTPRequestHandler):
    """A server with correct, wrong and incomplete responses."""

    def do_GET(self):
        self.server.requests[f"{self.command} {self.path}"] += 1
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        getattr(self, self.path.strip("/").partition(".")[0])(sent)

    do_POST = do_PUT = do_HEAD = do_GET

    def say(self, body, code=200, length=None, **headers):
        self.send_response(code)
        for name, value in {"Content-Length": length or len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(body if self.command != "HEAD" else b"")

    def good(self, sent):
        self.say(BODY, X_Asked=self.headers.get("X-Ask", "no"))

    def echo(self, sent):
        self.say(self.command.encode() + b" " + sent)

    def moved(self, sent):
        self.say(b"", 302, Location="/good", Set_Cookie="who=you; Path=/")

    def cookie(self, sent):
        self.say((self.headers.get("Cookie") or "none").encode())

    def none(self, sent):
        self.send_error(404)

    def short(self, sent):
        self.say(BODY, length=len(BODY) + 100)
        self.close_connection = True

    def silent(self, sent):
        self.server.over.wait(20)

    def reset(self, sent):
        self.say(BODY, length=len(BODY) + 100)
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def server():
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving.daemon_threads, serving.requests, serving.over = True, Counter(), threading.Event()
    serving.url = f"http://127.0.0.1:{serving.server_address[1]}"
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield serving
    serving.over.set()
    serving.shutdown()
    serving.server_close()
    thread.join()


@pytest.fixture
def as_one(server, tmp_path):
    """Run a script by python and on ranks; compare its output, its files and its requests."""

    def run(script, nproc):
        seen, left, asked = [], [], []
        for ranks in (0, nproc):
            folder = tmp_path / str(ranks)
            folder.mkdir()
            before = server.requests.copy()
            if ranks:
                seen.append(on_ranks(lambda run: script(), ranks, Downloads, Files, folder=folder))
            else:
                here = os.getcwd()
                os.chdir(folder)
                try:
                    seen.append([script()] * nproc)
                finally:
                    os.chdir(here)
            asked.append(dict(server.requests - before))
            left.append({path.name: path.read_bytes() for path in folder.iterdir()})
        assert seen[1] == seen[0]
        assert asked[1] == asked[0]
        assert left[1] == left[0]
        return seen[0][0], asked[0], left[0]

    return run


def failed(act):
    """Like `raised`, with the attributes of an HTTP error."""
    try:
        return act()
    except urllib.error.HTTPError as error:
        return "HTTPError", str(error), error.code, error.url, error.read()
    except Exception as error:
        return (
            type(error).__name__,
            str(error),
            str(getattr(error, "reason", "")),
            getattr(error, "partial", ""),
        )


def test_urllib(as_one, server):
    def script():
        url, seen = server.url, []
        with urllib.request.urlopen(f"{url}/good") as response:
            seen.append(
                [
                    response.status,
                    response.headers["Content-Length"],
                    response.read(4),
                    response.read(),
                ]
            )
        asked = urllib.request.Request(f"{url}/good", headers={"X-Ask": "yes"})
        response = urllib.request.urlopen(asked, timeout=5)
        seen.append(
            [list(response), response.getheader("X-Asked"), response.geturl(), response.reason]
        )
        seen.append(urllib.request.urlopen(f"{url}/echo", data=b"a=1").read())
        seen.append(urllib.request.urlopen(f"{url}/moved").url)
        with urllib.request.urlopen(f"{url}/good") as response, open("copied", "wb") as file:
            shutil.copyfileobj(response, file)
        seen.append(urllib.request.urlretrieve(f"{url}/good", "kept")[0])
        torch.hub.download_url_to_file(f"{url}/good", "hub", progress=False)
        return [*seen, Path("kept").read_bytes(), Path("hub").read_bytes()]

    _, asked, left = as_one(script, 3)
    assert asked == {"GET /good": 6, "POST /echo": 1, "GET /moved": 1}
    assert left == dict.fromkeys(("copied", "kept", "hub"), BODY)


def test_failed_requests_raise_on_all_ranks_as_in_one_process(as_one, server):
    def script():
        url, seen = server.url, []

        def read(path, **more):
            return urllib.request.urlopen(f"{url}/{path}", **more).read()

        seen += [failed(lambda path=path: read(path)) for path in ("none", "reset")]
        seen.append(failed(lambda: read("silent", timeout=0.2)))
        seen.append(failed(lambda: read("nothing at all")))
        seen.append(failed(lambda: urllib.request.urlretrieve(f"{url}/short", "short")))
        load, fetch = torch.hub.load_state_dict_from_url, torch.hub.download_url_to_file
        name = f"good.x-{'0' * 8}.pt"
        seen.append(failed(lambda: load(f"{url}/{name}", ".", progress=False, check_hash=True)))
        seen.append(failed(lambda: fetch(f"{url}/reset", "hub", progress=False)))
        return seen

    seen, _, left = as_one(script, 3)
    assert [kind for kind, *_ in seen] == [
        *("HTTPError", "ConnectionResetError", "TimeoutError", "InvalidURL"),
        *("ContentTooShortError", "RuntimeError", "ConnectionResetError"),
    ]
    assert sorted(left) == ["short"]  # half a file, as in one process


def test_requests(as_one, server):
    requests = pytest.importorskip("requests")

    def script():
        url, seen = server.url, []
        got = requests.get(f"{url}/good", headers={"X-Ask": "yes"}, timeout=5)
        seen.append([got.text, got.ok, got.headers["X-Asked"], got.request.method])
        seen.append(requests.post(f"{url}/echo", data={"a": 1}).text)
        with requests.Session() as session:
            moved = session.get(f"{url}/moved")
            seen.append([moved.url, [h.status_code for h in moved.history], dict(session.cookies)])
            seen.append(session.get(f"{url}/cookie").text)
        with requests.get(f"{url}/good", stream=True) as streamed, open("copied", "wb") as file:
            for chunk in streamed.iter_content(7):
                file.write(chunk)
        for path in ("reset", "silent"):
            seen.append(failed(lambda p=path: requests.get(f"{url}/{p}", timeout=0.2))[0])
        return seen

    seen, asked, left = as_one(script, 3)
    assert seen[2:4] == [[f"{server.url}/good", [302], {"who": "you"}], "who=you"]
    assert seen[4:] == ["ChunkedEncodingError", "ReadTimeout"]
    assert asked["GET /good"] == 3
    assert left == {"copied": BODY}
