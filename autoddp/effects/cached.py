"""A search of the stack for the `functools` cache that will remember what runs at present."""

from __future__ import annotations

import functools
import gc
import os
import sys
from types import CodeType, FrameType
from typing import Any

_OURS = os.path.dirname(os.path.dirname(__file__)) + "/"


class Cached:
    """The functions under `functools.lru_cache`, looked for when first asked."""

    def __init__(self) -> None:
        self._known: dict[CodeType, Any] | None = None

    def running(self) -> Any:
        """Return the innermost cache whose function runs, up to autoddp's nearest call, or None."""
        if self._known is None:
            caches = [x for x in gc.get_objects() if type(x) is functools._lru_cache_wrapper]
            self._known = {
                c.__wrapped__.__code__: c for c in caches if hasattr(c.__wrapped__, "__code__")
            }
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and not frame.f_code.co_filename.startswith(_OURS + "view/"):
            if frame.f_code in self._known:
                return self._known[frame.f_code]
            frame = frame.f_back
        return None
