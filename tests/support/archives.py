"""Small MNIST and CIFAR10 archives in the real formats, and an HTTP server on loopback for them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import struct
import tarfile
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

MNIST = {"train": 300, "t10k": 130}
CIFAR10 = {**{f"data_batch_{i}": 60 for i in range(1, 6)}, "test_batch": 70}
NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def make(folder: Path) -> None:
    """Write the archives, and beside them the checksums that torchvision is to expect."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    sums = {"mnist": _mnist(folder / "mnist", random), "cifar10": _cifar10(folder, random)}
    (folder / "sums.json").write_text(json.dumps(sums))


def _mnist(folder: Path, random: np.random.Generator) -> dict[str, str]:
    """The four idx-ubyte files: a class is a bright block at its own place, over noise."""
    folder.mkdir()
    for split, n in MNIST.items():
        labels = random.integers(10, size=n).astype(np.uint8)
        images = random.integers(80, size=(n, 28, 28)).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            row, column = 4 + 14 * (label // 5), 2 + 5 * (label % 5)
            image[row : row + 6, column : column + 4] += 150
        head = struct.pack(">IIII", 0x803, n, 28, 28), struct.pack(">II", 0x801, n)
        _gzip(folder / f"{split}-images-idx3-ubyte.gz", head[0] + images.tobytes())
        _gzip(folder / f"{split}-labels-idx1-ubyte.gz", head[1] + labels.tobytes())
    return {path.name: _md5(path.read_bytes()) for path in sorted(folder.iterdir())}


def _cifar10(folder: Path, random: np.random.Generator) -> dict[str, str]:
    """The tar.gz of pickled batches: a class is a colour, over noise."""
    colours = random.integers(60, 200, size=(10, 3, 1))
    contents: dict[str, bytes] = {}
    for name, n in CIFAR10.items():
        labels = random.integers(10, size=n)
        pixels = colours[labels] + random.integers(-40, 40, size=(n, 3, 1024))
        batch = {
            "batch_label": name,
            "labels": labels.tolist(),
            "data": pixels.astype(np.uint8).reshape(n, 3072),
            "filenames": [f"{name}_{i}.png" for i in range(n)],
        }
        contents[name] = pickle.dumps(batch, protocol=2)
    meta = {"num_cases_per_batch": 60, "label_names": NAMES, "num_vis": 3072}
    contents["batches.meta"] = pickle.dumps(meta, protocol=2)
    path = folder / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    sums = {name: _md5(content) for name, content in contents.items()}
    return {path.name: _md5(path.read_bytes()), **sums}


def point_torchvision(url: str) -> None:
    """Make this process, and its forks, download MNIST and CIFAR10 from `url`."""
    from torchvision.datasets import CIFAR10 as Cifar
    from torchvision.datasets import MNIST as Mnist

    with urllib.request.urlopen(f"{url}/sums.json") as answer:
        sums = json.load(answer)
    Mnist.mirrors = [f"{url}/mnist/"]
    Mnist.resources = list(sums["mnist"].items())
    ours = sums["cifar10"]
    Cifar.url, Cifar.tgz_md5 = f"{url}/{Cifar.filename}", ours[Cifar.filename]
    Cifar.train_list = [[name, ours[name]] for name, _ in Cifar.train_list]
    Cifar.test_list = [[name, ours[name]] for name, _ in Cifar.test_list]
    Cifar.meta = {**Cifar.meta, "md5": ours[Cifar.meta["filename"]]}


class Server(ThreadingHTTPServer):
    """Serves a folder on a free port of loopback and counts the requests by path."""

    daemon_threads = True

    def __init__(self, folder: Path, address: str = "127.0.0.1") -> None:
        self.folder = folder
        self.requests: Counter[str] = Counter()
        super().__init__((address, 0), Files)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://{self.server_address[0]}:{self.server_address[1]}"


class Files(SimpleHTTPRequestHandler):
    """A quiet file server."""

    def __init__(self, request, address, server: Server) -> None:
        self.counts = server.requests
        super().__init__(request, address, server, directory=str(server.folder))

    def do_GET(self) -> None:
        self.counts[self.path.lstrip("/")] += 1
        super().do_GET()

    def copyfile(self, source, outputfile) -> None:
        # torchvision first asks where the address leads, and hangs up without reading
        with suppress(ConnectionResetError, BrokenPipeError):
            super().copyfile(source, outputfile)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(folder: Path, listen: Callable[[Path], Server] = Server) -> Iterator[Server]:
    """The folder on loopback, until the end of the block."""
    server = listen(folder)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _gzip(path: Path, content: bytes) -> None:
    path.write_bytes(gzip.compress(content, mtime=0))


def _md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()
