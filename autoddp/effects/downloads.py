"""What the script downloads comes once: rank 0 first, then one rank of each node, then all."""

from __future__ import annotations

import email
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPMessage
from typing import Any, ClassVar

from autoddp.comm.topology import leaders
from autoddp.effects import http_replay, paths
from autoddp.effects.atomic import Draft
from autoddp.effects.engine import Mode
from autoddp.effects.file_server import Facts
from autoddp.effects.outward import Outward
from autoddp.patching import Call, patch
from autoddp.report import users_line
from autoddp.report.temporary import temporary_folder

# The data sets of torchvision that download in their constructor.
DATA_SETS = (
    "_stereo_matching:Middlebury2014Stereo",
    "caltech:Caltech101",
    "caltech:Caltech256",
    "celeba:CelebA",
    "cifar:CIFAR10",
    "clevr:CLEVRClassification",
    "country211:Country211",
    "dtd:DTD",
    "eurosat:EuroSAT",
    "fgvc_aircraft:FGVCAircraft",
    "flowers102:Flowers102",
    "food101:Food101",
    "gtsrb:GTSRB",
    "imagenette:Imagenette",
    "inaturalist:INaturalist",
    "kinetics:Kinetics",
    "kitti:Kitti",
    "lfw:LFWPeople",
    "lfw:LFWPairs",
    "mnist:MNIST",
    "mnist:QMNIST",
    "mnist:EMNIST",
    "moving_mnist:MovingMNIST",
    "omniglot:Omniglot",
    "oxford_iiit_pet:OxfordIIITPet",
    "pcam:PCAM",
    "phototour:PhotoTour",
    "places365:Places365",
    "rendered_sst2:RenderedSST2",
    "sbd:SBDataset",
    "sbu:SBU",
    "semeion:SEMEION",
    "stanford_cars:StanfordCars",
    "stl10:STL10",
    "sun397:SUN397",
    "svhn:SVHN",
    "usps:USPS",
    "widerface:WIDERFace",
)
# The places of the functions of requests, which are short for one another.
REQUESTS = (":", ".api:", ".sessions:Session.")
VERBS = ("get", "options", "head", "post", "put", "patch", "delete", "request")
WHY = "one request for the whole job; the other ranks find the files"
HANDED = "one request for the whole job; the body is handed on"


class Downloads(Outward):
    """The script's downloads: ranks that come later find the file, or are handed the body."""

    name: ClassVar[str] = "downloads"
    without: ClassVar[str] = "every rank asks for what it downloads"

    def setup(self, undo: ExitStack) -> None:
        """Prepare to note, for each thread, that a library is filling a file."""
        super().setup(undo)
        self._filling = threading.local()  # `now`: a library fills a file, on this thread

    @patch(*(f"torchvision.datasets.{name}.__init__" for name in DATA_SETS), why=WHY, optional=True)
    def make_in_turn(self, call: Call) -> Any:
        """Run the constructor in turn, if it downloads: it looks, loads, unpacks and reads."""
        more = call.named.get("kwargs", {})
        if not (call.named.get("download") or more.get("download")):
            return call.plain()
        return self._in_turn(call)

    @patch(
        "torch.hub:load",
        "torch.hub:load_state_dict_from_url",
        "torch.utils.model_zoo:load_url",
        "torchvision._internally_replaced_utils:load_state_dict_from_url",
        "torchvision.models._api:load_state_dict_from_url",
        why=WHY,
        optional=True,
    )
    def load_in_turn(self, call: Call) -> Any:
        """Load a model or its weights in turn, whoever calls: all ranks do."""
        return self._in_turn(call)

    @patch(
        "torchvision.datasets.utils:download_url",
        "torchvision.datasets.utils:download_and_extract_archive",
        "torchvision.datasets.utils:download_file_from_google_drive",
        "torchvision.datasets.utils:extract_archive",
        why=WHY,
        optional=True,
    )
    def fetch_in_turn(self, call: Call) -> Any:
        """Fetch in turn for the script; a library looked first for the file: ranks may differ."""
        if self.effects.users() is Mode.PASS_THROUGH:
            return call.plain()
        return self._in_turn(call)

    @patch("torch.hub:download_url_to_file", "urllib.request:urlretrieve", why=WHY)
    def load_once(self, call: Call) -> Any:
        """Load a file on one rank of each node: these never look whether the file is there."""
        if self.effects.users() is not Mode.SYNCED:
            return self._alone(lambda: self._whole(call))
        path, facts, headers = self._lead(call, 0)
        with self.effects.context.internal():
            others = leaders(self.effects.group)[1:]
        for leader in others:
            self._lead(call, leader, path, facts)
        if call.name.endswith("urlretrieve"):
            return path, email.message_from_string(headers, _class=HTTPMessage)
        return None

    @patch(
        "torchvision.datasets.utils:_urlretrieve",
        why="a download that breaks off leaves no half of a file",
        optional=True,
    )
    def retrieve_whole(self, call: Call) -> Any:
        """Write the file whole or not at all; without a checksum, half a file would pass for it."""
        return self._whole(call)

    @patch("torch.hub:urlopen", why="a body that breaks off is an error, not a file")
    def read_whole(self, call: Call) -> Any:
        """Make an early end of the body an error: torch.hub would rename half a file into place."""
        return http_replay.complete(call.plain())

    @patch("pandas.io.common:urlopen", why=HANDED, optional=True)
    def read_once(self, call: Call) -> Any:
        """Ask for an address that pandas was given as for the script's own: it always asks."""
        if self.effects.mode() is not Mode.SYNCED:
            return call.plain()
        return self._ask(call, *call.args)

    @patch("urllib.request:urlopen", why=HANDED)
    def open_once(self, call: Call) -> Any:
        """Ask on rank 0, and hand the response to all ranks.

        A body that is too large to be handed on is asked for by every rank, and that is said.
        """
        if self.effects.users() is not Mode.SYNCED:
            response = call.plain()
            return (
                http_replay.complete(response) if getattr(self._filling, "now", False) else response
            )
        return self._ask(call, call.named.get("url"))

    @patch(
        *(f"requests{owner}{verb}" for owner in REQUESTS for verb in VERBS),
        why=HANDED,
        optional=True,
    )
    def request_once(self, call: Call) -> Any:
        """Ask on rank 0, and hand the response to all ranks, like `open_once`."""
        if self.effects.users() is not Mode.SYNCED:
            return call.plain()
        packed = self._hand(call, lambda: http_replay.read_requests(call.plain()))
        if packed:
            owner = getattr(call.wrapped, "__self__", None)
            return http_replay.answer_requests(
                packed, owner if self.rank and hasattr(owner, "cookies") else None
            )
        return self._too_large(call, str(call.named.get("url")))

    @patch(
        "http.client:HTTPConnection.connect",
        "urllib3.connection:HTTPConnection.connect",
        "httpx:Client.send",
        "httpx:AsyncClient.send",
        "aiohttp:ClientSession._request",
        why="what asks the network in another way does so on every rank, and that is said",
        optional=True,
    )
    def say_each(self, call: Call) -> Any:
        """Say that every rank asks the network, whoever calls: for a library's downloads, too."""
        if self.effects.mode() is Mode.SYNCED:
            self.run.report.say_once(
                "downloads",
                users_line(1),
                f"{type(call.instance).__module__} asks the network on each of "
                f"{self.run.group.size} ranks; urllib.request, requests and torch.hub ask once for "
                "all",
            )
        return call.plain()

    def _in_turn(self, call: Call) -> Any:
        """Make the call on rank 0, then on the first rank of every other node, then on the rest."""
        if self.effects.mode() is not Mode.SYNCED:
            return self._alone(call.plain)
        made: list[Any] = []
        site = f"{call.name} at {users_line(1)}"
        with self.effects.context.internal():
            for leader in leaders(self.effects.group):
                self.run.group.call(site, lambda: made.append(call.plain()), by=leader)
            return made[0] if made else call.plain()

    def _alone(self, act: Callable[[], Any]) -> Any:
        """Act where ranks cannot meet: one rank of the node at a time, so that files are whole."""
        if self.effects.mode() is not Mode.UNSYNCED:
            return act()
        with self.effects.context.internal(), _one_at_a_time(self.run.world.master_port):
            return act()

    def _whole(self, call: Call) -> Any:
        """Make the call so that the file that it names is written whole, or left as it is."""
        path = call.named.get("filename")
        if path is None:  # a temporary file; or torch.hub, which renames by itself
            return call.plain()
        draft = Draft(os.fspath(path))
        self._filling.now = (
            call.name != "urllib.request.urlretrieve"
        )  # which checks the length itself
        try:
            with self.effects.context.internal():
                made = draft.write(lambda at: call.changed(filename=at))
                draft.put()
        finally:
            self._filling.now = False
            draft.discard()
        return made and (path, *made[1:])

    def _lead(
        self, call: Call, leader: int, path: str = "", facts: Facts | None = None
    ) -> list[Any]:
        """Load a file on rank `leader`, unless it sees rank 0's there.

        Returns:
            The path, the size and time of the file there, and the headers of the answer.
        """

        def load() -> list[Any]:
            if path and paths.facts(path) == facts:
                return [path, facts, ""]
            made = self._whole(call)
            at, headers = made if made is not None else (call.named["dst"], "")
            at = os.fspath(at)
            return [at, paths.facts(os.path.expanduser(at)), str(headers)]

        with self.effects.context.internal():
            return self.run.group.call(f"{call.name} at {users_line(1)}", load, by=leader)

    def _ask(self, call: Call, url: Any) -> Any:
        if packed := self._hand(call, lambda: http_replay.read(call.plain())):
            return http_replay.answer(packed)
        return self._too_large(call, http_replay.name_of(url))

    def _hand(self, call: Call, act: Callable[[], bytes]) -> bytes:
        with self.effects.context.internal():
            return self.run.group.call(f"{call.name} at {users_line(1)}", act)

    def _too_large(self, call: Call, url: str) -> Any:
        size = self.run.group.size
        self.run.report.say_once(
            "downloads",
            users_line(1),
            f"{url} is more than {http_replay.LIMIT >> 20} MB, too much to be handed from rank to "
            f"rank: each of {size} ranks asks for it; urllib.request.urlretrieve asks once",
        )
        with self.effects.context.internal():
            return call.plain()


@contextmanager
def _one_at_a_time(port: int) -> Iterator[None]:
    """Let one rank of the job on this machine inside at a time; `port` stands for the job."""
    path = os.path.join(temporary_folder(), f"autoddp-{os.getuid()}-{port}.lock")
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
