"""Requests of a job, and its results if a server fails, equal those of one process."""

from __future__ import annotations

import gzip
import os
import shutil
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from autoddp.effects.clocks import Clocks
from autoddp.effects.downloads import Downloads
from autoddp.effects.files import Files
from tests.effects.outward import on_ranks

BODY = b"line one\nline two\nthe rest of it"


class Handler(BaseHTTPRequestHandler):
    """A server with correct, wrong and incomplete responses."""

    protocol_version = "HTTP/1.1"

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

    def pieces(self, sent):
        """In chunks, compressed."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        whole = gzip.compress(BODY, mtime=0)
        for piece in (whole[:20], whole[20:]):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def none(self, sent):
        self.send_error(404)

    def short(self, sent):
        self.say(BODY, length=len(BODY) + 100)
        self.close_connection = True

    def silent(self, sent):
        self.server.over.wait(20)

    def reset(self, sent):
        self.say(BODY, length=len(BODY) + 100)
        time.sleep(0.1)  # the client reads the head
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def server():
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving.daemon_threads, serving.requests, serving.over = True, Counter(), threading.Event()
    serving.url = f"http://127.0.0.1:{serving.server_address[1]}"
    with socket.socket() as nobody:  # at a port where nothing listens
        nobody.bind(("127.0.0.1", 0))
        serving.closed = nobody.getsockname()[1]
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
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        seen += [opener.open(f"{url}/{path}").read() for path in ("moved", "cookie", "pieces")]
        return [*seen, Path("kept").read_bytes(), Path("hub").read_bytes()]

    _, asked, left = as_one(script, 3)
    assert asked["GET /good"] == 7
    assert set(asked.values()) == {1, 2, 7}
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
        url, seen, hooked = server.url, [], []

        def hook(response, **_):
            hooked.append(response)

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
        prepared = requests.Request("GET", f"{url}/pieces", hooks={"response": [hook]}).prepare()
        with requests.Session() as session:
            sent = session.send(prepared, stream=True)
            seen.append([list(sent.iter_lines()), hooked.pop().status_code])
        seen.append(isinstance(sent.elapsed.total_seconds(), float))
        for path in ("reset", "silent"):
            seen.append(failed(lambda p=path: requests.get(f"{url}/{p}", timeout=0.2))[0])
        return seen

    seen, asked, left = as_one(script, 3)
    assert seen[2:4] == [[f"{server.url}/good", [302], {"who": "you"}], "who=you"]
    assert seen[4:] == [[BODY.splitlines(), 200], True, "ChunkedEncodingError", "ReadTimeout"]
    assert asked["GET /good"] == 3
    assert left == {"copied": BODY}


def test_elapsed_time_is_rank_0s(server):
    """A script may decide by it."""
    requests, httpx = (pytest.importorskip(name) for name in ("requests", "httpx"))

    def script(run):
        requests.sessions.preferred_clock = time.perf_counter  # a job imports it later
        return [get(f"{server.url}/good").elapsed for get in (requests.get, httpx.get)]

    one, other = on_ranks(script, 2, Downloads, Clocks)
    assert one == other


@pytest.mark.parametrize("name", ["httpx", "httpx2"])
def test_httpx(as_one, server, name):
    httpx = pytest.importorskip(name)

    def script():
        url, seen = server.url, []
        got = httpx.get(f"{url}/good", headers={"X-Ask": "yes"}, timeout=5)
        seen.append([got.text, got.headers["X-Asked"], got.request.method, got.http_version])
        with httpx.Client(base_url=url, follow_redirects=True) as client:
            seen.append(client.post("/echo", data={"a": 1}).text)
            moved = client.get("/moved")
            seen.append([str(moved.url), [h.status_code for h in moved.history]])
            seen.append([client.get("/cookie").text, dict(client.cookies)])
            seen.append([client.head("/good").headers["Content-Length"], client.get("none")])
            seen[-1][1] = failed(seen[-1][1].raise_for_status)[:2]
            with client.stream("GET", "/pieces") as streamed, open("copied", "wb") as file:
                for chunk in streamed.iter_bytes():
                    file.write(chunk)
            with client.stream("GET", "/good") as unread:
                seen.append([unread.status_code, unread.is_closed])
            for path in ("short", "silent"):
                seen.append(failed(lambda p=path: client.get(p, timeout=0.2))[0])
            seen.append(failed(lambda: httpx.get(f"http://127.0.0.1:{closed}"))[0])
        return seen

    closed = server.closed
    seen, asked, left = as_one(script, 3)
    assert seen[3:4] == [["who=you", {"who": "you"}]]
    assert seen[6:] == ["RemoteProtocolError", "ReadTimeout", "ConnectError"]
    assert asked["GET /good"] == 3
    assert left == {"copied": BODY}


def test_urllib3(as_one, server):
    urllib3 = pytest.importorskip("urllib3")

    def script():
        url, seen, pool = server.url, [], urllib3.PoolManager(retries=False)
        got = pool.request("GET", f"{url}/good", headers={"X-Ask": "yes"})
        seen.append([got.data, got.status, got.headers["X-Asked"], got.read()])
        pieces = pool.request("GET", f"{url}/pieces", preload_content=False)
        seen.append([b"".join(pieces.stream(5, decode_content=True)), pieces.reason])
        seen.append(pool.request("HEAD", f"{url}/good").data)
        seen.append(pool.request("GET", f"{url}/moved", retries=3).data)
        for path in ("reset", "silent", "none"):
            seen.append(failed(lambda p=path: pool.request("GET", f"{url}/{p}", timeout=0.2).data))
            seen[-1] = seen[-1] if isinstance(seen[-1], bytes) else seen[-1][0]
        return seen

    seen, _, _ = as_one(script, 2)
    assert seen[4:6] == ["ProtocolError", "ReadTimeoutError"]
