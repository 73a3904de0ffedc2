"""Many short jobs in a row: does any hang, end otherwise than `python`, or leave something behind?

    python -m benchmarks.soak [--runs 1000] [--nproc 2] [--limit 120] [--fresh 20]
        [--only FORM]

Each run is `autoddp run` on a short script, the forms taking turns: every 20th (--fresh) by an
interpreter of its own, the others by forks of one that has imported torch, for that is most of the
time and not what is looked at. What a script prints, its exit code and its files are compared with
one process's. A run past its limit counts as a hang, and where each of its processes stands is
printed. Exit code 0: nothing was found.
"""

from __future__ import annotations

import argparse
import http.server
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from autoddp.report import PREFIX
from tests.support.cli import environ
from tests.support.warm import PLAIN_ENV, Fork, Warm

MARK = "AUTODDP_SOAK"  # in the environment of all that a run starts
GRACE = 3.0  # seconds in which what a run started may end after it
TRAINS = """
import os, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
x = torch.randn(75, 8)
data = TensorDataset(x, (x.sum(1) > 0).long())
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), \
nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
for epoch in range(2):
    for inputs, labels in DataLoader(data, batch_size=16, shuffle=True, num_workers=WORKERS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.9f}")
print(f"weights {sum(p.abs().sum().item() for p in model.state_dict().values()):.9f}")
"""
SAVES = """
os.makedirs("out", exist_ok=True)
torch.save({"model": model.state_dict(), "epoch": epoch}, "out/last.pt")
again = torch.load("out/last.pt")
print(f"saved {sum(p.abs().sum().item() for p in again['model'].values()):.9f}", os.listdir("out"))
"""
DOWNLOADS = """
import hashlib, urllib.request
body = urllib.request.urlopen(sys.argv[1], timeout=60).read()
print(len(body), hashlib.sha256(body).hexdigest())
"""
FORMS = {
    "trains": TRAINS.replace("WORKERS", "0"),
    "workers": TRAINS.replace("WORKERS", "2"),
    "saves": TRAINS.replace("WORKERS", "0") + SAVES,
    "downloads": TRAINS.replace("WORKERS", "0") + DOWNLOADS,
    "raises": TRAINS.replace("WORKERS", "0") + "raise ValueError('on purpose')\n",
    "exits": TRAINS.replace("WORKERS", "0") + "sys.exit(3)\n",
}


class Server(http.server.ThreadingHTTPServer):
    """Gives the same body for every path, and counts who asks."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: Counter[str] = Counter()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self, run: int) -> str:
        return f"http://127.0.0.1:{self.server_port}/{run}"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.asked[self.path] += 1
        body = bytes(range(256)) * 300
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@dataclass
class Done:
    """How one command ended, and what was there then."""

    code: int | None  # None: it hung
    out: str = ""
    err: str = ""
    files: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    seconds: float = 0.0
    standing: str = ""


def processes(session: int, mark: str) -> dict[int, str]:
    """Those of a session, or started by one of it: by number, with what each runs."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            mine = int(stat[3]) == session or mark.encode() in (folder / "environ").read_bytes()
            if mine and stat[0] not in "ZX":
                words = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
                found[int(folder.name)] = words.strip()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has just ended, or is another user's
    return found


def mapped() -> set[str]:
    """The shared memory that some process still uses: other programs' here, not left by a run."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found |= set(re.findall(r"/dev/shm/(\S+)", (folder / "maps").read_text()))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def run(command: list[str], text: str, folder: Path, limit: float, parent: Warm | None) -> Done:
    """Run a script in a new folder, with its own session and temporary files; what became of it.

    `command` is `python SCRIPT ...` or `autoddp run ...`, by a fork of that parent or by a new
    interpreter.
    """
    work, temporary = folder / "work", folder / "tmp"
    work.mkdir()
    temporary.mkdir()
    (work / "train.py").write_text(text)
    mark = f"{MARK}={folder.name}"
    env = (
        environ()
        | PLAIN_ENV
        | {"TMPDIR": str(temporary), MARK: folder.name, "PYTHONFAULTHANDLER": "1"}
    )
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    shared, began = set(os.listdir("/dev/shm")), time.monotonic()
    job = start(command, work, env, [folder / "out", folder / "err"], parent)
    done = Done(None)
    try:
        done.code = job.wait(limit)
    except subprocess.TimeoutExpired:
        done.standing = where_they_stand(job.pid, mark, folder)
    done.seconds = time.monotonic() - began
    done.left = leftovers(job.pid, mark, shared)
    done.left += [f"file {path.relative_to(temporary)}" for path in temporary.rglob("*")]
    job.wait()
    done.out, done.err = ((folder / name).read_text(errors="replace") for name in ("out", "err"))
    done.files = sorted(str(path.relative_to(work)) for path in work.rglob("*"))
    return done


def start(
    command: list[str], work: Path, env: dict[str, str], logs: list[Path], parent: Warm | None
) -> subprocess.Popen[bytes] | Fork:
    """Start a command."""
    if parent is not None:
        return parent.start(*command, folder=work, logs=logs, env=env)
    words = [sys.executable, *(["-m", *command] if command[0] == "autoddp" else command[1:])]
    with open(logs[0], "wb") as out, open(logs[1], "wb") as err:
        return subprocess.Popen(
            words,
            cwd=work,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )


def leftovers(session: int, mark: str, shared: set[str]) -> list[str]:
    """What is there still some seconds after the end; processes are ended."""
    deadline = time.monotonic() + GRACE
    while True:
        there = processes(session, mark)
        memory = set(os.listdir("/dev/shm")) - shared
        if memory:
            memory -= mapped()
        if not (there or memory) or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    for number in there:
        os.kill(number, signal.SIGKILL)
    return [f"process {n}: {words}" for n, words in there.items()] + [
        f"/dev/shm/{name}" for name in memory
    ]


def where_they_stand(session: int, mark: str, folder: Path) -> str:
    """Of each process: its state, where it is in the kernel, by thread in Python; all are ended."""
    lines = []
    os.kill(session, signal.SIGSTOP)  # or the launcher would tidy up when its ranks end
    there = processes(session, mark)
    for number, words in there.items():
        lines.append(f"process {number}: {words}")
        for thread in sorted(Path(f"/proc/{number}/task").glob("*")):
            facts = (_read(thread / name) for name in ("comm", "wchan", "syscall", "stack"))
            state = re.search(r"State:\s*(.*)", _read(thread / "status"))
            lines.append(f"  thread {thread.name}: {state and state[1]} " + " | ".join(facts))
    for number in sorted(there, key=lambda n: n == session):
        os.kill(number, signal.SIGABRT)  # faulthandler tells all threads' stacks on what was stderr
    time.sleep(1)
    os.kill(session, signal.SIGCONT)
    time.sleep(1)
    for path in (folder / "err", *(p for p in (folder / "tmp").rglob("*") if p.is_file())):
        lines += [f"--- {path.name}", _read(path)[-30000:]]
    for number in processes(session, mark):
        os.kill(number, signal.SIGKILL)
    return "\n".join(lines)


def _read(path: Path) -> str:
    """A file's text; of one line, if it is short facts that the kernel tells."""
    try:
        return (
            " ".join(path.read_text(errors="replace").split("\n")).strip()
            if path.name in SHORT
            else path.read_text()
        )
    except OSError as error:
        return f"({error.strerror})"


SHORT = ("comm", "wchan", "syscall", "stack")


def faults(want: Done, got: Done, asked: int | None) -> list[str]:
    """In what a run differs from one process's."""
    if got.code is None:
        return ["it hangs", got.standing]
    # torch makes a folder for itself
    found = [f"left {what}" for what in got.left if what not in want.left]
    if "the job hangs" in got.err:
        found.append("it hung, and ended itself")
    for name in ("code", "out", "files"):
        if getattr(got, name) != getattr(want, name):
            found.append(f"{name} is {getattr(got, name)!r}, not {getattr(want, name)!r}")
    said = "".join(line for line in got.err.splitlines(True) if not line.startswith(PREFIX))
    if said != want.err:
        found.append(f"stderr is {said!r}, not {want.err!r}")
    if asked not in (None, 1):
        found.append(f"the server was asked {asked} times")
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--limit", type=float, default=120)
    parser.add_argument(
        "--fresh", type=int, default=20, help="of how many runs one is by a new interpreter"
    )
    parser.add_argument("--only", choices=FORMS, action="append")
    args = parser.parse_args()
    server, forms, total = Server(), args.only or list(FORMS), Counter()
    times: dict[str, list[float]] = {form: [] for form in forms}
    ours = ["autoddp", "run", "--nproc", str(args.nproc), "train.py"]
    warm = Warm()
    with tempfile.TemporaryDirectory(prefix="soak-") as top:
        wanted = {}
        for form in forms:
            folder = Path(top, form)
            folder.mkdir()
            plain = ["python", "train.py", server.url(-1)]
            wanted[form] = run(plain, FORMS[form], folder, args.limit, None)
            wanted[form].err = wanted[form].err.replace(str(folder), "FOLDER")
        for number in range(args.runs):
            form = forms[number % len(forms)]
            folder = Path(top, str(number))
            folder.mkdir()
            parent = warm if number % args.fresh else None
            got = run([*ours, server.url(number)], FORMS[form], folder, args.limit, parent)
            got.err = got.err.replace(str(folder), "FOLDER")
            times[form].append(got.seconds)
            found = faults(
                wanted[form], got, server.asked[f"/{number}"] if form == "downloads" else None
            )
            hung = got.code is None or "the job hangs" in got.err
            total += Counter(
                hangs=hung,
                failures=bool(found) and not hung,
                leftovers=bool(set(got.left) - set(wanted[form].left)),
            )
            if found:
                print(f"run {number} ({form}): " + "\n  ".join(found), flush=True)
                if got.code is not None:
                    print(f"  stderr: {got.err[-3000:]}", flush=True)
            subprocess.run(["rm", "-rf", str(folder)], check=True)
            if (number + 1) % 50 == 0:
                print(f"{number + 1} runs, {dict(+total) or 'all well'}", flush=True)
    for form, seconds in times.items():
        if seconds:
            print(
                f"{form:10} {len(seconds):5} runs  median {statistics.median(seconds):5.1f} s  "
                f"worst {max(seconds):5.1f} s"
            )
    print(f"{args.runs} runs on {args.nproc} ranks: " + ", ".join(
        f"{total[what]} {what}" for what in ("hangs", "failures", "leftovers")
    ))  # fmt: skip
    return 1 if +total else 0


if __name__ == "__main__":
    sys.exit(main())
