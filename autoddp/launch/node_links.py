"""Lines between the launchers of a job's nodes: all learn who has failed, and that a node is lost.

Node 0 has a line to each other launcher. A thread listens; it rests while ranks are forked. A
launcher that ends without a word was lost with its node, and so is one that the kernel has no
answer from for a while.
"""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from autoddp.comm.control_plane import Channel
from autoddp.comm.world import World
from autoddp.errors import RankEnded, Unreachable
from autoddp.launch.failure import Failure, lost

if TYPE_CHECKING:
    from torch.distributed import Store

MEET = 30.0  # seconds in which all launchers that came have a line
BEAT = 0.5  # seconds between two words at most, so that the kernel has something to be answered
LIMIT = 30.0  # seconds without an answer, where --hang-timeout gives none
SHARE = 0.8  # of --hang-timeout: a lost node is named before the ranks seem to hang


class NodeLinks:
    """One launcher's lines to the others: node 0's to all, another node's to node 0."""

    def __init__(
        self,
        node: int,
        count: int,
        address: str,
        store: Store,
        hang_timeout: float,
    ) -> None:
        self.node, self.address = node, address
        self.limit = SHARE * hang_timeout or LIMIT
        world = World(rank=node, world_size=count, master_addr=address)
        # it closes them in forked ranks
        self._channel = Channel.between(world, store, MEET, who="node")
        self._lines = dict(self._channel.orders)
        for line in self._lines.values():
            line.limit(self.limit)
        self._hosts = {node: self._where(node, "") for node in self._lines}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._rests = threading.Event()
        self._attempt = 0
        self._told: tuple[Failure, float] | None = None
        self._through: set[int] = set()
        self.over = False  # whether all nodes' ranks have ended well

    # ---- what the launcher does

    def listen(self) -> None:
        """Start the thread that listens, once the ranks are forked."""
        self._attempt += 1
        self._told, self._through = None, set()
        self._rests.clear()
        self._thread = threading.Thread(target=self._run, name="autoddp-nodes", daemon=True)
        self._thread.start()

    def rest(self) -> None:
        """End the thread that listens, before ranks are forked."""
        if self._thread is not None:
            self._rests.set()
            self._thread.join()

    def heard(self, patience: float) -> Failure | None:
        """Return a failure elsewhere, None if there is none.

        One by an exit code is returned only after `patience` seconds, in which ranks here tell
        theirs.
        """
        if self._told is None:
            return None
        failure, since = self._told
        plain = not failure.lost and not failure.killed
        return None if plain and time.monotonic() - since < patience else failure

    def tell(self, failure: Failure) -> None:
        """Tell the others that a rank here failed first."""
        if self._told is None:
            self._send("failed", vars(failure))

    def done(self) -> None:
        """Tell the others that all ranks here ended well; `over` is set once all nodes' have."""
        self._through.add(self.node)
        self._send("through", self.node)
        self._conclude()

    # ---- the thread

    def _run(self) -> None:
        poller = select.poll()
        numbers = {line.number: node for node, line in self._lines.items()}
        for number in numbers:
            poller.register(number, select.POLLIN)
        while not self._rests.is_set():
            self._send("here", socket.gethostname())
            for number, _ in poller.poll(BEAT * 1000):
                if not self._hear(numbers[number]):
                    poller.unregister(number)

    def _hear(self, node: int) -> bool:
        """Take what a node has said; return whether more may come."""
        try:
            came = self._lines[node].arrived()
        except Unreachable:
            self._lose(node, f"it has not answered for {self.limit:.0f} s")
        except RankEnded:
            if node not in self._through and not self.over:
                self._lose(node, "its launcher has ended without a word")
        else:
            for what, attempt, content in map(json.loads, came):
                self._understand(node, what, attempt, content)
            return True
        del self._lines[node]
        return False

    def _understand(self, node: int, what: str, attempt: int, content: Any) -> None:
        if what == "here":
            self._hosts[node] = self._where(node, content)
        elif attempt != self._attempt:
            return  # of ranks that have been ended since
        elif what == "failed":
            where = content["where"] or self._hosts[node]
            self._note(Failure(**content | {"where": where}), node)
        elif what == "through":
            self._through.add(node)
            self._conclude()
        elif what == "over":
            self.over = True

    def _lose(self, node: int, why: str) -> None:
        self._note(lost(self._hosts[node], why), node)

    def _note(self, failure: Failure, source: int) -> None:
        """Keep a failure if it is the first; node 0 hands it on."""
        if self._told is None:
            self._told = failure, time.monotonic()
            if self.node == 0:
                self._send("failed", vars(failure), but=source)

    def _conclude(self) -> None:
        if self.node == 0 and self._through >= {0, *self._hosts}:
            self.over = True
            self._send("over", None)

    def _send(self, what: str, content: Any, but: int = -1) -> None:
        message = json.dumps([what, self._attempt, content]).encode()
        with self._lock:
            for node, line in list(self._lines.items()):
                if node != but:
                    line.send(message)

    def _where(self, node: int, host: str) -> str:
        """Describe a node by its number, address and host name."""
        found = [self.address if node == 0 else self._lines[node].address, host]
        return f"node {node} ({', '.join(word for word in found if word)})"
