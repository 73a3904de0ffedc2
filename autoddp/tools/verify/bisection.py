"""Search for the part of autoddp that is at fault: without it, ranks give the right numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from autoddp.tools.verify.causes import Cause

MOST = 24  # further runs, of all searches together
REPORT = "and please report it"
# Features that are left out together, tried in this order, and the cause if that mends the ranks.
FEATURES = (
    (
        ("modules", "loaders"),
        "operators",
        "an operator on a batch by rows, outside of modules that are split",
    ),
    (
        ("modules", "loaders", "batchnorm", "gradients"),
        "gradients",
        "how gradients are put together",
    ),
    (("randomness",), "randomness", "how random numbers are agreed"),
    (("clocks",), "clocks", "how clocks are agreed"),
    (("identity",), "identity", "how a batch's type is answered for"),
)

Left = tuple[str, ...]


class Trials:
    """Runs with something left out, each made once.

    Args:
        run: Tells whether the ranks give the numbers of one process without some features.
        modules: The names of all modules with parameters, with their types.
    """

    def __init__(self, run: Callable[[Left], bool], modules: Mapping[str, str]) -> None:
        self.run, self.modules = run, modules
        self.known: dict[Left, bool] = {}

    def mends(self, *left_out: str) -> bool:
        """Return whether ranks are right without these; False, untried, after `MOST` runs."""
        if left_out not in self.known:
            if len(self.known) >= MOST:
                return False
            self.known[left_out] = self.run(left_out)
        return self.known[left_out]

    def cause(self, steps: bool = True) -> Iterator[Cause]:
        """Yield the cause, if it can be told, by leaving out more and more features.

        Without `steps` each run is a whole one, so that few are made.
        """
        if self.mends("modules"):
            yield self._of_modules()
            return
        for features, name, what in FEATURES if steps else FEATURES[:1]:
            if self.mends(*features):
                yield self._of(features, name, what)
                return

    def _of(self, features: Left, name: str, what: str) -> Cause:
        """Name the cause by as few of these features as will do."""
        if "loaders" in features[:2] and self.mends("loaders"):
            features = ("loaders",)
        names = ",".join(features)
        return Cause(
            name,
            f"{what}: --disable modules alone does not make the ranks equal, "
            f"--disable {names} does",
            f"--disable {names}, {REPORT}",
        )

    def _of_modules(self) -> Cause:
        """Find the module at fault, as far down as can be told."""
        level, at = self._children(""), ""
        while level:
            found = self._narrow(level)
            if len(found) > 1:
                return self._several(found, at)
            at = found[0]
            if self.mends(f"modules:{at}"):
                return self._one(at)
            level = self._children(at)
        return self._one(at) if at and not self._children(at) else self._several(level, at)

    def _narrow(self, level: list[str]) -> list[str]:
        """Halve modules down to the one at fault; if several are, return all that are left."""
        while len(level) > 1:
            halves = level[: len(level) // 2], level[len(level) // 2 :]
            half = next((half for half in halves if self.mends(*_below(half))), None)
            if half is None:
                break
            level = half
        return level

    def _children(self, of: str) -> list[str]:
        """Return the names one step below a module; below an empty name, the outermost."""
        inner = [name for name in self.modules if name.rpartition(".")[0] == of]
        return list(dict.fromkeys(inner))

    def _one(self, name: str) -> Cause:
        return Cause(
            "modules",
            f"{name} ({self.modules[name]}) was taken for row-wise and is not, or its gradients "
            "are not put together rightly: if it is not run by rows as one, the ranks are equal",
            f"--disable modules:{name}, {REPORT}",
        )

    def _several(self, names: list[str], at: str) -> Cause:
        of = f" in {at}" if at else ""
        some = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        return Cause(
            "modules",
            f"modules{of} were taken for row-wise and are not, or their gradients are not put "
            f"together rightly (among them: {some or at or 'unknown'}): with --disable modules the "
            "ranks are equal",
            f"--disable modules, which is exact and no faster; {REPORT}",
        )


def _below(names: list[str]) -> Left:
    """Return the features that leave out these modules and all that is in them."""
    return tuple(f"modules:{pattern}" for name in names for pattern in (name, f"{name}.*"))
