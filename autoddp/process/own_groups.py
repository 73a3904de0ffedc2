"""The feature that refuses a script's own process groups and ranks, and says how to launch it."""

from __future__ import annotations

import functools
import os
from typing import Any, ClassVar

from autoddp.errors import BadInput
from autoddp.patching import Call, Feature, patch
from autoddp.process.source import joins
from autoddp.report import is_users, users_line

WAY_OUT = "autoddp run --own-ddp yes leaves that to the script"
TRAINERS = ("lightning", "pytorch_lightning", "lightning_fabric", "accelerate")


class Groups(Feature):
    """The refusal of process groups that a script makes itself while each rank sees one process."""

    name: ClassVar[str] = "groups"
    without: ClassVar[str] = (
        "every rank makes the process groups, and starts the ranks, that the script does"
    )
    views: ClassVar[tuple[str, ...]] = ("global",)

    @patch(
        "torch.distributed:init_process_group",
        "torch.distributed.distributed_c10d:init_process_group",
        why="ranks that each see one process would meet at one address as the same rank",
    )
    def refuse(self, call: Call) -> Any:
        """Refuse the script's process group, by BadInput."""
        raise BadInput(
            f"{users_line()} makes a process group itself, where ranks see one process; {WAY_OUT}"
        )

    @patch(
        "multiprocessing.process:BaseProcess.start",
        why="each rank would start the ranks of a script that starts its own",
    )
    def start(self, call: Call) -> Any:
        """Refuse, by BadInput, to start processes that join a process group.

        `torch.multiprocessing.spawn` goes this way, too.
        """
        process = call.instance
        target = process._target
        if getattr(target, "__module__", None) == "torch.multiprocessing.spawn":
            target = process._args[0]
        while isinstance(target, functools.partial):
            target = target.func
        if _meets(target):
            name = getattr(target, "__name__", type(target).__name__)
            raise BadInput(
                f"{users_line()} starts processes of {name}(), which makes a process group, and "
                f"every rank would start them; {WAY_OUT}"
            )
        return call.plain()

    @patch(
        "subprocess:Popen.__init__",
        why="ranks that a script starts as programs would wait for ranks that do not come",
    )
    def start_program(self, call: Call) -> Any:
        """Refuse, by BadInput, a program that gets another LOCAL_RANK, as Lightning starts some."""
        environ = call.named.get("env") or os.environ
        if environ.get("LOCAL_RANK") == os.environ.get("LOCAL_RANK"):
            return call.plain()
        raise BadInput(f"{users_line()} starts a rank, where ranks see one process; {WAY_OUT}")


def _meets(target: Any) -> bool:
    """Return whether a process with this target joins a process group.

    The source of the user's function tells; a function of a trainer's library always joins one.
    """
    module = getattr(target, "__module__", None) or type(target).__module__
    code = getattr(target, "__code__", None)
    if code is not None and is_users(code.co_filename):
        return joins(code.co_filename, code.co_name)
    return module.partition(".")[0] in TRAINERS
