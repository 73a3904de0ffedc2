"""What the script downloads comes once: rank 0 first, then one rank of each node, then all."""

from __future__ import annotations

import email
import os
import sys
from http.client import HTTPMessage
from typing import Any, ClassVar
from urllib.parse import urlsplit
from urllib.request import Request

from autoddp.comm.topology import leaders
from autoddp.effects import http_replay
from autoddp.effects.atomic import Draft
from autoddp.effects.engine import Mode
from autoddp.effects.outward import Outward
from autoddp.patching import Call, patch
from autoddp.report import users_line

# The data sets of torchvision that download in their constructor.
DATA_SETS = (
    "_stereo_matching:Middlebury2014Stereo caltech:Caltech101 caltech:Caltech256 celeba:CelebA "
    "cifar:CIFAR10 clevr:CLEVRClassification country211:Country211 dtd:DTD eurosat:EuroSAT "
    "fgvc_aircraft:FGVCAircraft flowers102:Flowers102 food101:Food101 gtsrb:GTSRB "
    "imagenette:Imagenette inaturalist:INaturalist kinetics:Kinetics kitti:Kitti lfw:LFWPeople "
    "lfw:LFWPairs mnist:MNIST mnist:QMNIST mnist:EMNIST moving_mnist:MovingMNIST "
    "omniglot:Omniglot oxford_iiit_pet:OxfordIIITPet pcam:PCAM phototour:PhotoTour "
    "places365:Places365 rendered_sst2:RenderedSST2 sbd:SBDataset sbu:SBU semeion:SEMEION "
    "stanford_cars:StanfordCars stl10:STL10 sun397:SUN397 svhn:SVHN usps:USPS "
    "widerface:WIDERFace"
)
CONSTRUCTORS = [f"torchvision.datasets.{name}.__init__" for name in DATA_SETS.split()]
MODELS = (
    "torch.hub:load",
    "torch.hub:load_state_dict_from_url",
    "torch.utils.model_zoo:load_url",
    "torchvision._internally_replaced_utils:load_state_dict_from_url",
    "torchvision.models._api:load_state_dict_from_url",
)
# A library looks first whether the file is there: in its calls ranks may differ.
UTILS = "download_url download_and_extract_archive download_file_from_google_drive extract_archive"
LOOKED_FOR = tuple(f"torchvision.datasets.utils:{name}" for name in UTILS.split())
LOCAL = ("file", "data")  # addresses at which nobody is asked


class Downloads(Outward):
    """The script's downloads: ranks that come later find the file, or are handed the body."""

    name: ClassVar[str] = "downloads"
    without: ClassVar[str] = "every rank asks for what it downloads"

    @patch(
        *CONSTRUCTORS, *MODELS, *LOOKED_FOR, why="one request for the job, or a node", optional=True
    )
    def load_in_turn(self, call: Call) -> Any:
        """Load on rank 0, then on the first rank of every other node, then on the rest."""
        given = {**call.named.get("kwargs", {}), **call.named}
        looked_for = call.target in LOOKED_FOR
        mode = self.effects.users() if looked_for else self.effects.mode()
        if mode is not Mode.SYNCED or (call.target in CONSTRUCTORS and not given.get("download")):
            return call.plain()
        made: list[Any] = []
        site = f"{call.name} at {users_line(1)}"
        with self.effects.context.internal():
            for leader in leaders(self.effects.group):
                self.run.group.call(site, lambda: made.append(call.plain()), by=leader)
            return made[0] if made else call.plain()

    @patch(
        "torch.hub:download_url_to_file",
        "urllib.request:urlretrieve",
        "torchvision.datasets.utils:_urlretrieve",
        why="one request for each disk; a download that breaks off leaves no half of a file",
        optional=True,
    )
    def load_once(self, call: Call) -> Any:
        """Load a file on rank 0, and on nodes that lack its folder: these never look for it."""
        if self.effects.users() is not Mode.SYNCED:
            return self._whole(call)

        def load() -> list[str]:
            made = self._whole(call) or (call.named.get("dst") or call.named["filename"], "")
            return [os.fspath(made[0]), str(made[1])]

        path, headers = self.effects.ask_rank0(call.name, load)
        writers = self.effects.writers(os.path.expanduser(path))
        self.effects.repeat(call.name, lambda: self._whole(call, path), writers)
        if call.name.endswith("urlretrieve"):
            return path, email.message_from_string(headers, _class=HTTPMessage)
        return None

    @patch(
        "urllib.request:urlopen",
        "torch.hub:urlopen",
        "pandas.io.common:urlopen",
        why="one request for the job; the body is handed on",
        optional=True,
    )
    def open_once(self, call: Call) -> Any:
        """Ask on rank 0, and hand the response to all ranks; pandas always asks.

        A body that is too large to be handed on is asked for by every rank, and that is said.
        """
        effects, url = self.effects, call.args[0] if call.args else call.named.get("url")
        by_all = call.target.startswith("pandas")
        if (effects.mode() if by_all else effects.users()) is not Mode.SYNCED:
            return http_replay.complete(call.plain())
        packed = self.effects.ask_rank0(call.name, lambda: http_replay.read(call.plain()))
        if packed:
            return http_replay.answer(packed)
        return self._each(call, url.full_url if isinstance(url, Request) else str(url))

    @patch(
        "requests.sessions:Session.request",
        why="one request for the job; it is handed on",
        optional=True,
    )
    def request_once(self, call: Call) -> Any:
        """Ask on rank 0, and hand the response to all ranks, like `open_once`."""
        through = os.path.dirname(sys.modules["requests"].__file__ or "") + "/"
        if self.effects.users(through=(through,)) is not Mode.SYNCED:
            return call.plain()
        packed = self.effects.ask_rank0(call.name, lambda: http_replay.read_requests(call.plain()))
        if packed:
            return http_replay.answer_requests(packed, call.instance)
        return self._each(call, str(call.named.get("url")))

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
            who = f"{type(call.instance).__module__} asks the network on each of"
            self._say(f"{who} {{}} ranks; urllib.request, requests and torch.hub ask once for all")
        return call.plain()

    def _whole(self, call: Call, path: Any = None) -> Any:
        """Make the call so that the file that it names is written whole, or left as it is."""
        path = call.named.get("filename") or path
        if path is None or "dst" in call.named:  # a temporary file; or torch.hub, which renames
            return call.plain()
        draft = Draft(os.fspath(path))
        try:
            with self.effects.context.internal():
                made = draft.write(lambda at: call.changed(filename=at))
                draft.put()
        finally:
            draft.discard()
        return made and (path, *made[1:])

    def _each(self, call: Call, url: str) -> Any:
        """Ask on every rank for what cannot be handed on, and say so."""
        if urlsplit(url).scheme not in LOCAL:
            self._say(
                f"{url} is not handed from rank to rank, which bodies of up to "
                f"{http_replay.LIMIT >> 20} MB by http are: each of {{}} ranks asks for it; "
                "urllib.request.urlretrieve asks once"
            )
        with self.effects.context.internal():
            return call.plain()

    def _say(self, what: str) -> None:
        self.run.report.say_once("downloads", users_line(2), what.format(self.run.group.size))
