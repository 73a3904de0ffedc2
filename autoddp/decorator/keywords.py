"""The keyword arguments of `@distributed` with their types, for type checkers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Literal, TypedDict


class Keywords(TypedDict, total=False):
    """The options that `@distributed` takes; a test compares them with `autoddp.options`."""

    nproc: int | None
    backend: Literal["auto", "nccl", "gloo", "native"]
    view: Literal["global", "local"]
    batchnorm: Literal["exact", "local"]
    parameters: Literal["auto", "sharded", "replicated"]
    placement: Literal["sharded", "auto", "replicated"]
    loading: Literal["auto", "rows", "each"]
    draws: Literal["auto", "whole", "own"]
    average_every: int | str | None
    disable: str | Iterable[str]
    strict: bool
    report: str | os.PathLike[str] | None
    log_dir: str | os.PathLike[str] | None
    hang_timeout: int
    verbose: bool
    quiet: bool
