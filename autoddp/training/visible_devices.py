"""A script that names several devices runs on those that its rank sees."""

from __future__ import annotations

from typing import Any

import torch

from autoddp.patching import Call, Feature, patch


class Visible(Feature):
    """The devices of `nn.DataParallel`: each rank is one of the replicas of one process."""

    name = "visible"
    without = "`nn.DataParallel` asks for devices that are another rank's, and fails"
    views = ("global",)

    @patch("torch.nn:DataParallel.__init__", why="a rank sees its own devices: others are left out")
    def use_own(self, call: Call) -> Any:
        """Leave out the ids of devices that this rank does not see."""
        there, given = torch.accelerator.device_count(), call.named
        if not there or not given:
            return call.plain()
        names = ("device_ids", "output_device")
        return call.changed(**{name: among(given.get(name), there) for name in names})


def among(ids: Any, there: int) -> Any:
    """Keep ids of devices that are there; None, as torch has it for all, where none is."""
    if isinstance(ids, (list, tuple)):
        return [each for each in ids if among(each, there) is not None] or None
    number = torch.device(ids).index if isinstance(ids, (str, torch.device)) else ids
    return ids if number is None or number < there else None
