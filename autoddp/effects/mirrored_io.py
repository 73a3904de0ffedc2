"""The layers of a file that the script holds open for writing; a keeper sees what becomes of them.

They are Python's own but for three things, which the keeper does: failed writes, flushes, closes.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from autoddp.effects.deferred_errors import DeferredError


@dataclass(frozen=True)
class Writers:
    """The ranks that change a path for real.

    Attributes:
        ranks: Rank 0, and the first rank of each node that does not share the path's folder.
        apart: Whether this rank's node does not.
    """

    path: str = ""
    ranks: tuple[int, ...] = (0,)
    apart: bool = False


@dataclass
class OpenDescriptor:
    """The file that stands behind a descriptor which the script has opened by `os.open`."""

    path: str
    agreed: bool = False
    writers: Writers = Writers()
    loss: DeferredError | None = None


class FileObserver(Protocol):
    """The keeper of open files, which decides what becomes of their failures and meetings."""

    def failed(self, raw: MirroredFileIO, error: OSError) -> None:
        """Raise the error of a failed write, or go on without what was to be written."""

    def flush(self, file: Any, flush: Callable[[], None]) -> None: ...

    def close(self, file: Any, close: Callable[[], None]) -> None: ...


class MirroredFileIO(io.FileIO):
    """The layer that writes to the disk; C code that holds a file's methods comes by here, too."""

    keeper: FileObserver
    path = ""  # the user's name of the file
    agreed = False  # whether all ranks have opened it together
    writers = Writers()
    loss: DeferredError | None = None

    def write(self, data: Any, /) -> int:
        """Write all of `data`, or tell the keeper what failed; all of it counts as written.

        On a disk that fills up, ranks would write different parts.
        """
        try:
            return whole(super().write, data)
        except OSError as error:
            self.keeper.failed(self, error)
            return memoryview(data).nbytes


def whole(write: Callable[[Any], int], data: Any) -> int:
    """Write until all of `data` is written, or nothing more can be now; return how much was."""
    done = write(data)
    while done and done < memoryview(data).nbytes:
        more = write(memoryview(data).cast("B")[done:])
        if not more:
            break
        done += more
    return done


class MirroredFile:
    """The outermost layer, the one that the script holds."""

    bottom: MirroredFileIO
    _name = ""

    def flush(self) -> None:
        """Have the keeper flush the file, unless it is closed already."""
        top: Any = super()
        if self.closed:  # type: ignore[attr-defined]
            top.flush()  # words the error
        else:
            self.bottom.keeper.flush(self, top.flush)

    def close(self) -> None:
        """Have the keeper close the file, unless it is closed already."""
        top: Any = super()
        if self.closed:  # type: ignore[attr-defined]
            top.close()
        else:
            self.bottom.keeper.close(self, top.close)

    def __repr__(self) -> str:
        return super().__repr__().replace(f"<{type(self).__name__} ", f"<{self._name} ")


class Text(MirroredFile, io.TextIOWrapper):
    """The outermost layer of a text file."""

    _name = "_io.TextIOWrapper"  # which Python up to 3.12 calls its subclasses, too


class MirroredWriter(MirroredFile, io.BufferedWriter):
    """The outermost layer of a binary file that is written only."""

    _name = "_io.BufferedWriter"


class Random(MirroredFile, io.BufferedRandom):
    """The outermost layer of a binary file that is read, too."""

    _name = "_io.BufferedRandom"


class Unbuffered(MirroredFile, MirroredFileIO):
    """The only layer of a binary file without a buffer."""

    _name = "_io.FileIO"

    @property
    def bottom(self) -> MirroredFileIO:  # type: ignore[override]
        """Return the file itself; held in an attribute, it would not be closed when dropped."""
        return self


def rebuilt(plain: Any, named: dict[str, Any], keeper: FileObserver, agreed: bool) -> Any:
    """Rebuild the open file `plain` in our layers; `named` are the arguments of its `open`."""
    mode, size = named["mode"], named.get("buffering", -1)
    letters = "".join(sorted(set(mode) & set("rwxa+"), reverse=True))
    bottom = getattr(plain, "buffer", plain)
    bottom = getattr(bottom, "raw", bottom)
    given = isinstance(named["file"], int)  # its number is known to the script
    number = named["file"] if given else os.dup(bottom.fileno())
    raw = (Unbuffered if size == 0 else MirroredFileIO)(
        number, letters, not given or named.get("closefd", True)
    )
    plain_text = plain if isinstance(plain, io.TextIOWrapper) else None
    name = named["file"] if given else os.fspath(named["file"])
    raw.name, raw.keeper, raw.agreed = name, keeper, agreed
    raw.path = "" if given else os.path.abspath(os.fsdecode(named["file"]))
    size = size if size > 1 else max(bottom._blksize, io.DEFAULT_BUFFER_SIZE)
    file: Any = raw
    if plain_text is not None:
        buffer = (io.BufferedRandom if "+" in mode else io.BufferedWriter)(raw, size)
        file = Text(
            buffer, plain.encoding, plain.errors, named.get("newline"), plain.line_buffering
        )
        file.mode = mode
    elif not isinstance(raw, Unbuffered):
        file = (Random if "+" in mode else MirroredWriter)(raw, size)
    if file is not raw:
        file.bottom = raw
    plain.close()
    return file
