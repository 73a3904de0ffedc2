"""Exchange of failures between the launchers of a job, by node 0's store.

A thread does this by a connection of its own, so that a store that does not answer blocks nothing
else. The thread does not run while ranks are forked.
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

POLL = 0.05  # seconds between two reads of the store
HEARTBEAT = 1.0  # seconds between two heartbeats, at most
DELAY = 0.3  # seconds before an exit code is reported, so that a killed rank is reported first
LIMIT = 30.0  # seconds without a heartbeat until a node is lost, without --hang-timeout
SHARE = 0.8  # of --hang-timeout: a lost node is reported before the ranks seem to hang
READ_TIMEOUT = 5.0  # seconds that node 0 waits for the others to read why the job ends


class NodeLinks:
    """One launcher's link to the others."""

    def __init__(self, node: int, count: int, host: str, port: int, hang_timeout: float) -> None:
        self.node, self.count, self.host, self.port = node, count, host, port
        self.limit = SHARE * hang_timeout or LIMIT
        self._attempt = 0
        self._node0 = "node 0"  # with its host, once known
        self._thread: threading.Thread | None = None
        self._reset()

    def _reset(self) -> None:
        self.all_succeeded = False  # whether the ranks of all nodes have
        self._stopping = threading.Event()
        self._answered = time.monotonic()  # when the store last answered
        self._to_report: tuple[Failure, float] | None = None  # with its time
        self._succeeded = False  # whether to report the success of the ranks here
        self._elsewhere: tuple[Failure, float] | None = None  # a failure elsewhere, and its time

    # ---- called by the launcher

    def start(self) -> None:
        """Start the thread, after the ranks are forked."""
        self._attempt += 1
        self._reset()
        self._thread = threading.Thread(target=self._run, name="autoddp-nodes", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, before ranks are forked and at the end; it reports a failure first."""
        if self._thread is not None:
            self._stopping.set()
            self._thread.join(self.limit)

    def failure(self, grace: float) -> Failure | None:
        """Return a failure on another node, None if there is none.

        A failure by an exit code is returned after `grace` seconds, in which ranks here may fail,
        too.
        """
        running = self._thread is not None and self._thread.is_alive()
        if self._elsewhere is None and running and time.monotonic() - self._answered > self.limit:
            self._lose(self._node0)
        if self._elsewhere is None:
            return None
        failure, since = self._elsewhere
        exited = not failure.lost and not failure.killed
        return None if exited and time.monotonic() - since < grace else failure

    def report(self, failure: Failure) -> None:
        """Report the first failure here to the other nodes."""
        self._to_report = failure, time.monotonic() + (0 if failure.killed else DELAY)

    def report_success(self) -> None:
        """Report that all ranks here succeeded. Once all nodes have, `all_succeeded` is set."""
        self._succeeded = True

    # ---- the thread

    def _run(self) -> None:
        try:
            limit = timedelta(seconds=self.limit)
            tcp = TCPStore(self.host, self.port, is_master=False, timeout=limit)
            self._node0 = _name(tcp, 0)
            self._exchange(tcp, PrefixStore(f"attempt {self._attempt}", tcp))
        except dist.DistError:
            self._lose(self._node0)

    def _exchange(self, tcp: Store, store: Store) -> None:
        """Exchange heartbeats until the attempt is over."""
        others = {node: (b"", time.monotonic()) for node in range(1, self.count)}
        sent = 0.0
        while not self._stopping.is_set() or self._to_report is not None:
            self._send_reports(tcp, store)
            time.sleep(POLL)
            if store.check(["over"]):
                self._read_end(store)
                return
            self._answered = time.monotonic()
            if self._answered < sent + min(HEARTBEAT, self.limit / 8):
                continue
            sent = self._answered
            store.set(f"heartbeat/{self.node}", str(sent))
            for node, (last, since) in others.items() if self.node == 0 else ():
                key = f"heartbeat/{node}"
                beat = store.get(key) if store.check([key]) else b""
                if beat != last:
                    others[node] = beat, time.monotonic()
                elif time.monotonic() - since > self.limit:
                    self.report(_lost(_name(tcp, node)))

    def _send_reports(self, tcp: Store, store: Store) -> None:
        """Write a failure, if none was written before, or the success of the ranks here."""
        if self._to_report is not None and time.monotonic() >= self._to_report[1]:
            (failure, _), self._to_report = self._to_report, None
            report = vars(failure) | {"where": failure.where or _name(tcp, self.node)}
            store.compare_set("failed", "", json.dumps([self.node, report]))
            store.set("over", "")
        elif self._succeeded and self._to_report is None:
            self._succeeded = False
            if store.add("succeeded", 1) == self.count:
                store.set("over", "")

    def _read_end(self, store: Store) -> None:
        """Read how the attempt ended; node 0, which has the store, waits for the others."""
        if not store.check(["failed"]):
            self.all_succeeded = True
        else:
            node, failure = json.loads(store.get("failed"))
            if node != self.node or failure["lost"]:
                self._elsewhere = Failure(**failure), time.monotonic()
        read, deadline = store.add("read", 1), time.monotonic() + READ_TIMEOUT
        while self.node == 0 and read < self.count and time.monotonic() < deadline:
            time.sleep(POLL / 10)
            read = store.add("read", 0)

    def _lose(self, node: str) -> None:
        self._elsewhere = _lost(node), time.monotonic()


def _lost(node: str) -> Failure:
    """Return the failure of a node with all its ranks."""
    return Failure(-1, -1, 1, node, "it does not answer")


def _name(tcp: Store, node: int) -> str:
    """Return a node's rank and the name of its host, which it has registered."""
    return f"node {node} ({PrefixStore(NODES, tcp).get(str(node)).decode()})"
