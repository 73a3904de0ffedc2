"""The rendezvous of a job on a number of nodes that is given: each knows its own number.

Node 0 hosts the store. Each node writes there that it has come, and reads whether all have. Who
gives up meanwhile writes why, and all the others end with that reason.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo

from autoddp.comm.patience import Patience, missing
from autoddp.errors import AutoDDPError, BadInput
from autoddp.launch import say
from autoddp.launch.rendezvous import HOST, NAME, SteadyNodes
from autoddp.process import network
from autoddp.process.launcher_signals import ENDING

if TYPE_CHECKING:
    from types import FrameType

    from autoddp.options import Options

JOIN = timedelta(minutes=10)  # in which all nodes are there; torchrun's
ANSWER = timedelta(seconds=60)  # in which the store does what it is asked
HEARD = timedelta(seconds=2)  # in which all nodes that are there read why one gave up
TICK = 0.1
BEATS = 1.5  # seconds in which a node that waits has shown that it is alive
MEETING = "meeting"  # the keys of it in the store:
NODE, BEAT, HEARS, BEGUN, OVER = "node", "beat", "hears", "begun", "over"


class Ended(Exception):
    """The end of a node that waits, by a signal."""


class FixedNodes(SteadyNodes):
    """The rendezvous handler of one launcher, whose ranks use the store at which it met others."""

    def __init__(self, options: Options) -> None:
        assert options.node_rank is not None
        assert options.master_addr is not None
        assert options.master_port is not None
        self.node, self.count = options.node_rank, options.nnodes
        self.host, self.port = options.master_addr, options.master_port
        self.say = partial(say, options)
        self._mine = f"{secrets.token_hex(8)} {socket.gethostname()}"
        self._server: TCPStore | None = None
        self._store: TCPStore | None = None
        self._meeting: Store | None = None

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet the other nodes; return at once where ranks start again, as all are there."""
        if self._store is None:
            with self._telling():
                self._store = self._meet()
        where = RendezvousStoreInfo(self.host, self.port)
        return RendezvousInfo(PrefixStore(NAME, self._store), self.node, self.count, where)

    def _meet(self) -> TCPStore:
        patience, whom = Patience(JOIN.total_seconds(), self.say), "node 0 to answer"
        if self.node == 0:
            # not by its address, which may be none of this machine's
            self._server = TCPStore(HOST, self.port, is_master=True, wait_for_workers=False)
            self._meeting = PrefixStore(MEETING, self._server)
            whom = "this machine, which has node 0, to be reached"
        network.await_store(self.host, self.port, patience, whom)
        try:
            store = TCPStore(self.host, self.port, is_master=False, timeout=ANSWER)
            self._meeting = PrefixStore(MEETING, store)
            self._come(self._meeting)
            self._wait(self._meeting, patience)
        except dist.DistError:
            raise AutoDDPError(
                f"node 0 at {self.host}:{self.port} has ended before all nodes were there; "
                "see what it said, and start all nodes again"
            ) from None
        store.set_timeout(JOIN)
        return store

    def _come(self, meeting: Store) -> None:
        """Take this node's place at the meeting; one that was killed has left it free.

        Raises:
            BadInput: The place is taken, or the job runs already.
        """
        if meeting.check([BEGUN]):
            raise BadInput(
                f"--node-rank is {self.node}, but the job at {self.host}:{self.port} runs already "
                f"on its {self.count} nodes; end it first, or give this job another --master-port"
            )
        if self._place(meeting) != self._mine and not silent(meeting, [self.node]):
            self._refuse(meeting)
        meeting.set(f"{NODE}/{self.node}", self._mine)

    def _place(self, meeting: Store) -> str:
        """Take this node's place if it is free; return whose it is now."""
        return meeting.compare_set(f"{NODE}/{self.node}", "", self._mine).decode()

    def _refuse(self, meeting: Store) -> NoReturn:
        held = meeting.get(f"{NODE}/{self.node}").decode()
        raise BadInput(
            f"--node-rank is {self.node}, but node {self.node} of the job at {self.host}:"
            f"{self.port} is {held.partition(' ')[2]} already; give each node its own number"
        )

    def _wait(self, meeting: Store, patience: Patience) -> None:
        while not meeting.check([BEGUN]):
            meeting.add(f"{BEAT}/{self.node}", 1)
            if meeting.check([OVER]):
                self._end(meeting)
            # node 0 has freed it if this node was silent, and another may have taken it since
            if self._place(meeting) != self._mine:
                self._refuse(meeting)
            if self.node == 0 and self._all_there(meeting):
                meeting.set(BEGUN, "")
                return
            try:
                patience.look(partial(self._missing, meeting))
            except AutoDDPError as error:
                give_up(meeting, self.node, str(error))
                raise
            time.sleep(TICK)

    def _all_there(self, meeting: Store) -> bool:
        """Return whether all nodes have come and are alive; free the places of those that died."""
        others = range(1, self.count)
        if not meeting.check([f"{NODE}/{node}" for node in others]):
            return False
        died = silent(meeting, others)
        for node in died:
            meeting.delete_key(f"{NODE}/{node}")
        return not died

    def _missing(self, meeting: Store) -> str:
        numbers = [n for n in range(self.count) if not meeting.check([f"{NODE}/{n}"])]
        return missing("node", numbers, self.count)

    def _end(self, meeting: Store) -> NoReturn:
        """End as a node has given up; node 0 does so when the others have read why."""
        node, host, why = json.loads(meeting.get(OVER))
        meeting.set(f"{HEARS}/{self.node}", "")
        if self.node == 0:
            linger(meeting, self.count)
        raise AutoDDPError(f"node {node} ({host}) has given up: {why}")

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Tell the others of a signal that ends this node while it waits, and then end by it."""
        found = {n: signal.getsignal(n) for n in ENDING if signal.getsignal(n) == signal.SIG_DFL}
        try:
            for number in found:
                signal.signal(number, _end_by)
            yield
        except Ended as ended:
            (number,) = ended.args
            signal.signal(number, signal.SIG_DFL)
            if self._meeting is not None:
                with suppress(dist.DistError):
                    why = f"it was ended by {signal.Signals(number).name} while it waited"
                    give_up(self._meeting, self.node, why)
                    if self.node == 0:
                        linger(self._meeting, self.count)
            os.kill(os.getpid(), number)
        finally:
            for number, handler in found.items():
                signal.signal(number, handler)


def _end_by(number: int, frame: FrameType | None) -> NoReturn:
    raise Ended(number)


def silent(meeting: Store, nodes: Iterable[int]) -> list[int]:
    """Return the nodes that show no life within `BEATS` seconds, as a node that waits does."""
    before = {node: meeting.add(f"{BEAT}/{node}", 0) for node in nodes}
    until = time.monotonic() + BEATS
    while before and time.monotonic() < until:
        time.sleep(TICK)
        before = {n: beat for n, beat in before.items() if meeting.add(f"{BEAT}/{n}", 0) == beat}
    return list(before)


def give_up(meeting: Store, node: int, why: str) -> None:
    """Tell all nodes that this one gives up, and why, if it is the first."""
    said = json.dumps([node, socket.gethostname(), why])
    meeting.compare_set(OVER, "", said)
    meeting.set(f"{HEARS}/{node}", "")


def linger(meeting: Store, count: int) -> None:
    """Keep the store up, on node 0, until the nodes that are there have read why one gave up."""
    there = [node for node in range(1, count) if meeting.check([f"{NODE}/{node}"])]
    with suppress(dist.DistError):
        meeting.wait([f"{HEARS}/{node}" for node in there], HEARD)


def tell(host: str, port: int, node: int, why: str) -> None:
    """Tell the nodes that wait at node 0's store that this one will not come, and why."""
    with suppress(dist.DistError):
        store = TCPStore(host, port, is_master=False, timeout=HEARD)
        give_up(PrefixStore(MEETING, store), node, why)
