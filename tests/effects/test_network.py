"""What a server sees of a job, and the job of a server that fails: those of one process."""

from __future__ import annotations

import hashlib
import http.client
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
    """Answers well, badly, or not to the end."""

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

    def broken(self, sent):
        self.say(b"sorry", 500)

    def short(self, sent):
        self.say(BODY, length=len(BODY) + 100)
        self.close_connection = True

    def silent(self, sent):
        self.server.over.wait(20)

    def stalls(self, sent):
        self.say(BODY, length=len(BODY) + 100)
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
    """Run a script plainly, then on ranks: what it saw, what it left, what the server saw."""

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
    """As `raised`, with what an error of HTTP carries."""
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


@pytest.mark.parametrize("nproc", [2, 3])
def test_urllib(as_one, server, nproc):
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
        seen.append([list(response), response.getheader("X-Asked"), response.geturl()])
        seen.append(urllib.request.urlopen(f"{url}/echo", data=b"a=1").read())
        seen.append(urllib.request.urlopen(f"{url}/moved").url)
        with urllib.request.urlopen(f"{url}/good") as response, open("copied", "wb") as file:
            shutil.copyfileobj(response, file)
        seen.append(urllib.request.urlretrieve(f"{url}/good", "kept")[0])
        torch.hub.download_url_to_file(f"{url}/good", "hub", progress=False)
        return [*seen, Path("kept").read_bytes(), Path("hub").read_bytes()]

    _, asked, left = as_one(script, nproc)
    assert asked == {"GET /good": 6, "POST /echo": 1, "GET /moved": 1}
    assert left == dict.fromkeys(("copied", "kept", "hub"), BODY)


@pytest.mark.parametrize("nproc", [2, 3])
def test_what_fails_fails_on_all_ranks_as_in_one_process(as_one, server, nproc):
    def script():
        url, seen = server.url, []

        def read(path, **more):
            return urllib.request.urlopen(f"{url}/{path}", **more).read()

        seen += [
            failed(lambda path=path: read(path)) for path in ("none", "broken", "short", "reset")
        ]
        seen += [failed(lambda path=path: read(path, timeout=0.2)) for path in ("silent", "stalls")]
        seen.append(failed(lambda: urllib.request.urlopen("http://127.0.0.1:1/")))
        seen += [
            failed(lambda p=p: urllib.request.urlretrieve(f"{url}/{p}", p))
            for p in ("none", "short")
        ]
        sum = "0" * 8
        load = torch.hub.load_state_dict_from_url
        seen.append(
            failed(lambda: load(f"{url}/good.x-{sum}.pt", ".", progress=False, check_hash=True))
        )
        fetch = torch.hub.download_url_to_file
        for path, prefix in (("none", None), ("reset", None), ("good", sum)):
            seen.append(
                failed(lambda p=path, x=prefix: fetch(f"{url}/{p}", f"hub-{p}", x, progress=False))
            )
        right = hashlib.sha256(BODY).hexdigest()[:8]
        fetch(f"{url}/good", "hub", right, progress=False)
        return seen

    seen, _, left = as_one(script, nproc)
    assert [kind for kind, *_ in seen[:6]] == [
        *("HTTPError", "HTTPError", "IncompleteRead", "ConnectionResetError"),
        *("TimeoutError", "TimeoutError"),
    ]
    assert [kind for kind, *_ in seen[6:9]] == ["URLError", "HTTPError", "ContentTooShortError"]
    assert [kind for kind, *_ in seen[9:]] == [
        "RuntimeError",
        "HTTPError",
        "ConnectionResetError",
        "RuntimeError",
    ]
    assert sorted(left) == ["hub", "short"]  # half a file, as in one process


@pytest.mark.parametrize("nproc", [2, 3])
def test_requests(as_one, server, nproc):
    requests = pytest.importorskip("requests")

    def script():
        url, seen = server.url, []
        got = requests.get(f"{url}/good", headers={"X-Ask": "yes"}, timeout=5)
        seen.append(
            [got.text, got.ok, got.headers["X-Asked"], got.request.method, got.elapsed.days]
        )
        seen += [
            requests.post(f"{url}/echo", data={"a": 1}).text,
            requests.put(f"{url}/echo", data=b"x").content,
        ]
        seen.append(requests.head(f"{url}/good").headers["Content-Length"])
        with requests.Session() as session:
            moved = session.get(f"{url}/moved")
            seen.append([moved.url, [h.status_code for h in moved.history], dict(session.cookies)])
            seen.append(session.get(f"{url}/cookie").text)
        with requests.get(f"{url}/good", stream=True) as streamed, open("copied", "wb") as file:
            for chunk in streamed.iter_content(7):
                file.write(chunk)
        seen.append(failed(requests.get(f"{url}/broken").raise_for_status)[0])
        for path in ("short", "reset", "silent", "stalls"):
            seen.append(failed(lambda p=path: requests.get(f"{url}/{p}", timeout=0.2))[0])
        seen.append(failed(lambda: requests.get("http://127.0.0.1:1/"))[0])
        seen.append(failed(lambda: requests.get("nonsense")))
        return seen

    seen, asked, left = as_one(script, nproc)
    assert seen[4:6] == [[f"{server.url}/good", [302], {"who": "you"}], "who=you"]
    assert seen[7:11] == [
        "ChunkedEncodingError",
        "ChunkedEncodingError",
        "ReadTimeout",
        "ConnectionError",
    ]
    assert asked["GET /good"] == 3
    assert left == {"copied": BODY}


def test_what_asks_in_another_way_asks_on_each_rank_and_that_is_said(server, tmp_path):
    host = server.url.removeprefix("http://")

    def script(run):
        connection = http.client.HTTPConnection(host)
        connection.request("GET", "/good")
        read = connection.getresponse().read()
        connection.close()
        return read, [decision.what for decision in run.report.of("downloads")]

    before = server.requests.copy()
    zero, one = on_ranks(script, 2, Downloads, folder=tmp_path)
    assert zero == one
    assert dict(server.requests - before) == {"GET /good": 2}
    assert zero == (
        BODY,
        [
            "http.client.HTTPConnection.connect: every rank asks the network; "
            "urllib.request, requests and torch.hub ask once for all"
        ],
    )
