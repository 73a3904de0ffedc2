"""Whole tensors of which ranks cut shards have to be equal: a shard tells nothing of the rest.

A checkpoint that each rank reads from a disk of its own, or noise of a generator of its own, would
be written into the shards of one parameter in pieces, and no rank could see it afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import Parameter

from autoddp.comm.context import Code
from autoddp.report import users_line
from autoddp.torch_internals import in_backward, transform
from autoddp.training.fingerprint import Fingerprint

if TYPE_CHECKING:
    from autoddp.training.parameters.layout import Layout
    from autoddp.training.parameters.wholes import Wholes

MOST = 1024  # tensors that wait to be compared


class Agreement:
    """The whole tensors that were cut since ranks compared them."""

    def __init__(self, wholes: Wholes) -> None:
        self._wholes, self._found = wholes, Fingerprint()

    def cut(self, whole: Tensor, layout: Layout) -> Tensor:
        """Return this rank's shard of a whole tensor, as a view, and note the whole."""
        wholes = self._wholes
        real = type(whole) in (Tensor, Parameter) and not transform()  # else it has no numbers
        if real and wholes.view.context.on_script_thread():
            if len(self._found.names) >= MOST and not in_backward():
                self.compare()
            with wholes.internal():
                text = f"a tensor of shape {tuple(whole.shape)} that was written into parameters at"
                self._found.add(f"{text} {users_line()}", [whole])
        return layout.shard(whole)

    def compare(self) -> None:
        """Compare what was cut; all ranks call this at the same place.

        Raises:
            Disagreement: Two ranks had other tensors.
        """
        found, self._found = self._found, Fingerprint()
        if found.names:
            wholes = self._wholes
            with wholes.view.context.within(Code.PLAIN), wholes.internal():
                found.compare(wholes.group, exact=wholes.view.report.strict)
