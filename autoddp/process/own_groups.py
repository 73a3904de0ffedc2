"""The feature that refuses a script's own process groups and ranks, and says how to launch it."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from autoddp.errors import BadInput
from autoddp.patching import Call, Feature, patch
from autoddp.report import users_line

WAY_OUT = "autoddp run --own-ddp yes leaves that to the script"


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
        "torch.multiprocessing:start_processes",
        "torch.multiprocessing.spawn:start_processes",
        why="ranks that each see one process would meet at one address as the same rank, or each "
        "start the ranks of a script that starts its own",
    )
    def refuse(self, call: Call) -> Any:
        """Refuse, by BadInput, the script's process group, and processes that torch starts."""
        raise BadInput(
            f"{users_line()} calls {call.wrapped.__name__}, where ranks see one process; {WAY_OUT}"
        )

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
