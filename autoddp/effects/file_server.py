"""Files for nodes that do not share rank 0's folders: handed over when they are read there.

The truth about a file that the job changed is on rank 0's disk, and so it is about a file that is
not here. A rank of another node asks rank 0 what it sees; if it sees the same itself, the folder is
shared, else the file comes over, once for each node.
"""

from __future__ import annotations

import _thread
import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch.distributed import DistError

from autoddp.comm.outcome import Outcome
from autoddp.effects import paths
from autoddp.errors import RemoteError, TooLarge
from autoddp.torch_internals import another_connection, pop, push

if TYPE_CHECKING:
    from autoddp.comm.group import Group
    from autoddp.effects.scratch import Scratch

LIMIT = 1 << 30  # bytes of a file that are handed over
LATE = 60.0  # seconds after which a file server shows all nodes what one has written
PART = 1 << 20  # bytes that travel at once
AHEAD = 4  # parts that are asked for before the first of them was read
PATIENCE = timedelta(minutes=5)  # in which rank 0 has answered
LAST = 60.0  # seconds that rank 0 stays to answer when its own script has ended
FOREVER = timedelta(days=365)
ASKED = "handover/asked"
SKEW = 2 * 10**9  # nanoseconds that the clock of a file server may be behind
_TICK = 0.02

Facts = list[int]  # size and time of change: by what two ranks see that they see one file


class FileServer:
    """A server of rank 0's files to other nodes, on a thread that the script does not see."""

    def __init__(self, group: Group) -> None:
        self._group, self._store = group, another_connection(group.store)
        self._store.set_timeout(FOREVER)
        self._folder, self._since = os.path.realpath(os.getcwd()), time.time_ns() - SKEW
        self.announced: set[str] = set()  # paths that the script was told are there
        _thread.start_new_thread(self._serve, ())

    def end(self, others: list[int]) -> None:
        """Stay until the other ranks have read what they want, at most `LAST` seconds.

        A rank 0 that hosts the store stays for them by itself, and the thread answers to its end.
        A rank that waits for what rank 0 would have done next learns that it will not.
        """
        self._group.channel.close()
        store, keys = self._group.store, [f"handover/left/{rank}" for rank in others]
        deadline = time.monotonic() + LAST
        while self._group.world.agent_store and not store.check(keys):
            if time.monotonic() > deadline:
                return
            time.sleep(_TICK)

    def _serve(self) -> None:
        with suppress(DistError):  # the store went with its host: nobody is left who asks
            while True:
                self._reply(*json.loads(pop(self._store, ASKED)))

    def _reply(self, key: str, path: str, facts: Facts | None, offset: int) -> None:
        body = bytearray()
        outcome = Outcome.of(lambda: self._answer(path, facts, offset, body))
        # Any: the stub of `set` knows text only
        data: Any = json.dumps(outcome.to_data()).encode() + b"\n" + body
        self._store.set(key, data)

    def _answer(self, path: str, facts: Facts | None, offset: int, body: bytearray) -> Facts | None:
        """Return the facts of `path`, None if it is not served; fill `body` if they are `facts`."""
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would keep us waiting
        except FileNotFoundError:
            return None
        try:
            there = os.fstat(handle)
            if not stat.S_ISREG(there.st_mode) or not self._serves(path, there):
                return None
            now = [there.st_size, there.st_mtime_ns]
            if facts == now:
                body += os.pread(handle, PART, offset)
            return now
        finally:
            os.close(handle)

    def _serves(self, path: str, there: os.stat_result) -> bool:
        """Return whether `path` is new to the job, below its folder, or the script asked for it."""
        below = os.path.realpath(path).startswith(self._folder.rstrip("/") + "/")
        return below or there.st_ctime_ns >= self._since or path in self.announced


class FileClient:
    """A client of rank 0's file server, for a rank of another node and its worker processes."""

    def __init__(self, group: Group, scratch: Scratch, folder: str, node: int) -> None:
        self._group, self._scratch, self._folder, self._node = group, scratch, folder, node
        self.made = MirroredFolders()
        self._pid = -1
        self._connect()

    def _connect(self) -> None:
        """Make a connection of this process's own: one that was forked belongs to the parent."""
        if self._pid != os.getpid():
            self._pid, self._lock, self._number = os.getpid(), threading.Lock(), 0
            self._store = another_connection(self._group.store)
            self._store.set_timeout(PATIENCE)

    def find(self, file: str | bytes | os.PathLike[Any]) -> Any:
        """Return the path where this rank reads `file`.

        Raises:
            FileNotFoundError: Rank 0 removed the file.
            TooLarge: The file is on node 0 alone, and is too large to be handed over.
        """
        path = os.path.abspath(os.fsdecode(file))
        scratch = self._scratch
        with self._group.context.internal():
            changed = _among(paths.real(path, True), scratch.changed)
            if not changed and os.path.lexists(path):
                return file
            facts = self._ask(path)[0]
            if facts is not None:
                there = facts == paths.facts(path) or (facts[0] > LIMIT and _comes(path, facts))
                return file if there else self._fetched(path, facts)
            if changed and os.path.isfile(path):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file)
        return file

    def end(self) -> None:
        """Say that this rank will not ask again; the last one of its node removes the copies."""
        if os.getpid() != self._pid:
            return
        group = self._group
        with suppress(DistError):  # rank 0 went first
            group.store.set(f"handover/left/{group.rank}", "")
            if group.store.add(f"handover/left/of/{self._node}", 1) < group.world.local_world_size:
                return
        shutil.rmtree(self._folder, ignore_errors=True)

    def _fetched(self, path: str, facts: Facts) -> str:
        """Return the path of a copy of rank 0's file for all ranks of this node."""
        size, changed = facts
        if size > LIMIT:
            raise TooLarge(
                f"{path} is on node 0 and, after {LATE:.0f} s, not on node {self._node}: {size} "
                f"bytes, and up to {LIMIT} are handed over; put it in a folder that both nodes "
                f"share, or copy it to node {self._node}"
            )
        folder = os.path.join(self._folder, hashlib.sha1(path.encode()).hexdigest())
        at = os.path.join(folder, version := f"{changed}-{size}", os.path.basename(path))
        with _alone(folder) as note:
            if not os.path.exists(at):
                os.makedirs(os.path.dirname(at), exist_ok=True)
                self._copy(path, facts, at)
                os.utime(at, ns=(changed, changed))
            before = os.pread(note, 99, 0).decode().rstrip()
            if before != version:
                os.pwrite(note, f"{version:99}".encode(), 0)
                # by turn: times may go back; and a worker may be about to open the one before
                for old in set(os.listdir(folder)) - {version, before}:
                    shutil.rmtree(os.path.join(folder, old))
        return at

    def _copy(self, path: str, facts: Facts, at: str) -> None:
        """Bring the file over to `at`, which comes to be once it is whole."""
        handle = os.open(at + "~", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            for part in self._parts(path, facts):
                os.write(handle, part)
        finally:
            os.close(handle)
        os.rename(at + "~", at)

    def _parts(self, path: str, facts: Facts) -> Iterator[bytes]:
        """Yield all bytes of the file; some parts are under way while one is read."""
        offsets, keys = list(range(0, facts[0], PART)), []
        for at in range(len(offsets) + AHEAD):
            if at < len(offsets):
                keys.append(self._send(path, facts, offsets[at]))
            if at >= AHEAD and at - AHEAD < len(offsets):
                now, part = self._receive(path, keys[at - AHEAD])
                if now != facts:
                    raise RemoteError(f"{path} changed on node 0 while it was handed over")
                yield part

    def _ask(self, path: str) -> tuple[Any, bytes]:
        return self._receive(path, self._send(path, None, 0))

    def _send(self, path: str, facts: Facts | None, offset: int) -> str:
        self._connect()
        with self._lock:
            self._number += 1
            key = f"handover/{self._group.rank}/{self._pid}/{self._number}"
            push(self._store, ASKED, json.dumps([key, path, facts, offset]))
        return key

    def _receive(self, path: str, key: str) -> tuple[Any, bytes]:
        try:
            with self._lock:
                packed = self._store.get(key)
                self._store.delete_key(key)
        except DistError as error:
            raise RemoteError(f"rank 0 does not say what is at {path}: {error}") from None
        line, _, body = packed.partition(b"\n")
        return Outcome.from_data(json.loads(line)).unwrap(), body


class MirroredFolders:
    """The folders that this rank made on its node, since rank 0 made them on its own."""

    def __init__(self) -> None:
        self._made: set[str] = set()

    def make(self, path: str) -> None:
        """Make the folder `path`, and those that it lies in."""
        missing = []
        while not os.path.isdir(path) and path != os.path.dirname(path):
            missing.append(path)
            path = os.path.dirname(path)
        for folder in reversed(missing):
            with suppress(FileExistsError):  # another rank of this node was first
                os.mkdir(folder)
                self._made.add(folder)

    def move(self, source: str, target: str) -> None:
        """Rename a folder that was made here, as rank 0 has."""
        if source in self._made and os.path.isdir(source):
            self.make(os.path.dirname(target))
            os.rename(source, target)
        below = {path for path in self._made if _among(path, {source})}
        self._made = (self._made - below) | {target + path[len(source) :] for path in below}

    def remove(self, path: str) -> None:
        """Remove a folder that was made here, as rank 0 has."""
        if path in self._made:
            # errors: it may be one folder for both nodes, after all
            shutil.rmtree(path, ignore_errors=True)
        self._made = {folder for folder in self._made if not _among(folder, {path})}


@contextmanager
def _alone(folder: str) -> Iterator[int]:
    """Let one rank or worker of this node inside at a time; yield a file to leave notes in."""
    handle = os.open(folder + ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


def _among(path: str, changed: Collection[str] | None) -> bool:
    """Return whether `path`, or a folder that it lies in, is among `changed`."""
    while changed:
        if path in changed:
            return True
        folder = os.path.dirname(path)
        if folder == path:
            return False
        path = folder
    return False


def _comes(path: str, facts: Facts) -> bool:
    """Wait for a late file server; return whether `path` came. What fits is handed over."""
    deadline = time.monotonic() + LATE
    while time.monotonic() < deadline:
        with suppress(OSError):
            os.close(os.open(path, os.O_RDONLY))  # then a client asks its server anew
        if paths.facts(path) == facts:
            return True
        time.sleep(_TICK)
    return False
