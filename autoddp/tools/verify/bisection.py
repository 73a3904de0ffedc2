"""Search for the part of autoddp that is at fault: without it, ranks give the right numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from autoddp.tools.verify.causes import Cause

REPORT = "and please report it"
# Features that are left out together, in this order, and the cause if that mends the ranks.
FEATURES = (
    (("modules", "loaders"), "rules", "a rule computes another result on sharded tensors"),
    (("modules", "loaders", "gradients"), "gradients", "how gradients are put together"),
    (("randomness",), "randomness", "how random numbers are agreed"),
    (("clocks",), "clocks", "how clocks are agreed"),
)

Left = tuple[str, ...]


class Bisection:
    """Runs with something left out, each made once.

    Args:
        run: Tells whether the ranks give the numbers of one process without some features.
    """

    def __init__(self, run: Callable[[Left], bool]) -> None:
        self.run = run
        self.known: dict[Left, bool] = {}

    def mends(self, *left_out: str) -> bool:
        """Return whether ranks are right without these features."""
        if left_out not in self.known:
            self.known[left_out] = self.run(left_out)
        return self.known[left_out]

    def cause(self, steps: bool = True) -> Iterator[Cause]:
        """Yield the cause, if it can be told, by leaving out more and more features.

        Without `steps` each run is a whole one, so that few are made.
        """
        for features, name, what in FEATURES if steps else FEATURES[:1]:
            if self.mends(*features):
                yield self._of(features, name, what)
                return

    def _of(self, features: Left, name: str, what: str) -> Cause:
        """Name the cause by as few of these features as will do."""
        if "loaders" in features[:2]:
            fewer: tuple[Left, ...] = (("loaders",), ("modules",))
            features = next((found for found in fewer if self.mends(*found)), features)
        names = ",".join(features)
        return Cause(
            name,
            f"{what}: with --disable {names} the ranks are equal",
            f"--disable {names}, {REPORT}",
        )
