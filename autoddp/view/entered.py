"""A split call that runs: modules in it see this rank's rows, and its draws are the batch's."""

from __future__ import annotations

from typing import Any

from autoddp.comm.context import Code
from autoddp.view.draws import Draws
from autoddp.view.state import Region, View
from autoddp.view.work import SPLIT


class Entered:
    """A split call that runs inside, as a context manager; a step has some: no generator."""

    def __init__(self, view: View, region: Region, drawn: int) -> None:
        self._view, self._region, self._drawn = view, region, drawn

    def __enter__(self) -> None:
        view, region = self._view, self._region
        self._draws = Draws.of(region.cuts, region.at, region) if region.draws else None
        region.drawn = self._drawn
        self._before, view.region = view.region, region
        self._work = view.work.turn(SPLIT)
        self._depth = view.context.depth  # a forked child has another one
        self._depth[Code.SPLIT] += 1
        if self._draws is not None:
            try:
                self._draws.__enter__()
            except BaseException:
                self._draws = None
                self.__exit__()
                raise

    def __exit__(self, *raised: Any) -> None:
        view = self._view
        try:
            if self._draws is not None:
                self._draws.__exit__(*raised)
        finally:
            self._depth[Code.SPLIT] -= 1
            view.work.turn(self._work)
            view.region = self._before
