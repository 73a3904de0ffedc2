"""What the launchers of a job exchange by node 0's store: which rank failed, which node is lost.

A thread has a connection of its own, so that a store that does not answer blocks nobody else. It
does not run while ranks are forked.
"""

from __future__ import annotations

import json
import threading
import time
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore

from autoddp.launch.failure import Failure
from autoddp.launch.rendezvous import NODES

BEAT = 0.05  # seconds between two looks at the store
SIGN = 1.0  # seconds between two signs of life, at most
LATER = 0.3  # seconds until an exit code is reported: a rank that was killed comes first
LIMIT = 30.0  # seconds without one, where --hang-timeout gives none
SHARE = 0.8  # of --hang-timeout: a lost node is named before the ranks seem to hang
LAST = 5.0  # seconds that node 0 leaves to the others to read why the job ends


class NodeLinks:
    """One launcher's link to the others."""

    def __init__(self, node: int, count: int, host: str, port: int, hang_timeout: float) -> None:
        self.node, self.count, self.host, self.port = node, count, host, port
        self.limit = SHARE * hang_timeout or LIMIT
        self._attempt = 0
        self._first = "node 0"  # in words
        self._thread: threading.Thread | None = None
        self._forget()

    def _forget(self) -> None:
        self.over = False  # whether all nodes' ranks have ended well
        self._rests = threading.Event()
        self._here = time.monotonic()  # when the store last answered
        self._mine: tuple[Failure, float] | None = None  # what is still to be reported, and when
        self._through = False  # likewise
        self._told: tuple[Failure, float] | None = None

    # ---- what the launcher does

    def listen(self) -> None:
        """Start the thread, once the ranks are forked."""
        self._attempt += 1
        self._forget()
        self._thread = threading.Thread(target=self._run, name="autoddp-nodes", daemon=True)
        self._thread.start()

    def rest(self) -> None:
        """End the thread, before ranks are forked and at the end; it reports a failure first."""
        if self._thread is not None:
            self._rests.set()
            self._thread.join(self.limit)

    def heard(self, grace: float) -> Failure | None:
        """Return a failure elsewhere, None if there is none.

        One by an exit code is returned only after `grace` seconds, in which ranks here may fail
        by themselves.
        """
        hears = self._thread is not None and self._thread.is_alive()
        if self._told is None and hears and time.monotonic() - self._here > self.limit:
            self._lose(self._first)
        if self._told is None:
            return None
        failure, since = self._told
        plain = not failure.lost and not failure.killed
        return None if plain and time.monotonic() - since < grace else failure

    def tell(self, failure: Failure) -> None:
        """Report to the others that a rank here failed first."""
        self._mine = failure, time.monotonic() + (0 if failure.killed else LATER)

    def done(self) -> None:
        """Report that all ranks here ended well; `over` is set once those of all nodes have."""
        self._through = True

    # ---- the thread

    def _run(self) -> None:
        try:
            limit = timedelta(seconds=self.limit)
            tcp = TCPStore(self.host, self.port, is_master=False, timeout=limit)
            self._first = _words(tcp, 0)
            self._listen(tcp, PrefixStore(f"attempt {self._attempt}", tcp))
        except dist.DistError:
            self._lose(self._first)

    def _listen(self, tcp: Store, news: Store) -> None:
        """Exchange signs of life until there is news, which ends the attempt."""
        others = {node: (b"", time.monotonic()) for node in range(1, self.count)}
        signed = 0.0
        while not self._rests.is_set() or self._mine is not None:
            self._say(tcp, news)
            time.sleep(BEAT)
            if news.check(["over"]):
                self._end(news)
                return
            self._here = time.monotonic()
            if self._here < signed + min(SIGN, self.limit / 8):
                continue
            signed = self._here
            news.set(f"here/{self.node}", str(signed))
            for node, (before, since) in others.items() if self.node == 0 else ():
                sign = news.get(f"here/{node}") if news.check([f"here/{node}"]) else b""
                if sign != before:
                    others[node] = sign, time.monotonic()
                elif time.monotonic() - since > self.limit:
                    self.tell(_lost(_words(tcp, node)))

    def _say(self, tcp: Store, news: Store) -> None:
        """Write what is to be reported; the first failure counts."""
        if self._mine is not None and time.monotonic() >= self._mine[1]:
            (failure, _), self._mine = self._mine, None
            told = vars(failure) | {"where": failure.where or _words(tcp, self.node)}
            news.compare_set("failed", "", json.dumps([self.node, told]))
            news.set("over", "")
        elif self._through and self._mine is None:
            self._through = False
            if news.add("through", 1) == self.count:
                news.set("over", "")

    def _end(self, news: Store) -> None:
        """Read the news; node 0, which has the store, waits until the others have read it, too."""
        if not news.check(["failed"]):
            self.over = True
        else:
            node, failure = json.loads(news.get("failed"))
            if node != self.node or failure["lost"]:
                self._told = Failure(**failure), time.monotonic()
        read, deadline = news.add("read", 1), time.monotonic() + LAST
        while self.node == 0 and read < self.count and time.monotonic() < deadline:
            time.sleep(BEAT / 10)
            read = news.add("read", 0)

    def _lose(self, where: str) -> None:
        self._told = _lost(where), time.monotonic()


def _lost(where: str) -> Failure:
    """Return the failure of a node with all its ranks."""
    return Failure(-1, -1, 1, where, "it does not answer")


def _words(tcp: Store, node: int) -> str:
    """Describe a node by its number and the name of its machine, which it gave when it came."""
    return f"node {node} ({PrefixStore(NODES, tcp).get(str(node)).decode()})"
