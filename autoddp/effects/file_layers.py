"""The layers of a file that is open for writing, by which flushes, closes and failures are seen."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autoddp.effects.engine import Writers

if TYPE_CHECKING:
    from autoddp.effects.open_files import OpenFiles


@dataclass
class Held:
    """A file that is open for writing.

    Attributes:
        path: The full path that the script knows.
        agreed: Whether all ranks have opened it together.
        writers: The ranks that write it for real.
        lost: The error of a write that failed, and was not raised yet.
    """

    path: str
    agreed: bool
    writers: Writers
    lost: OSError | None = None


class Bottom(io.FileIO):
    """The layer that writes to the disk; C code that holds a file's methods comes by here, too."""

    files: OpenFiles
    held: Held

    def write(self, data: Any, /) -> int:
        """Write all of `data`; where the disk is full, ranks would write different parts."""
        try:
            done = more = super().write(data)
            while more and done < memoryview(data).nbytes:
                more = super().write(memoryview(data).cast("B")[done:])
                done += more or 0
        except OSError as error:
            self.files.failed(self.held, error)
            return memoryview(data).nbytes
        return done


class Top:
    """The outermost layer, whose flush and close `OpenFiles` sees."""

    _name = ""  # the class that one process would have
    bottom: Bottom

    def flush(self) -> None:
        """Flush the file, for all ranks together if the script does."""
        top: Any = super()
        self.bottom.files.complete("flush", self, top.flush)

    def close(self) -> None:
        """Close the file, for all ranks together."""
        top: Any = super()
        self.bottom.files.complete("close", self, top.close)

    def __repr__(self) -> str:
        return super().__repr__().replace(f"<{type(self).__name__} ", f"<{self._name} ")


class Text(Top, io.TextIOWrapper):
    """The outermost layer of a text file."""

    _name = "_io.TextIOWrapper"  # which Python up to 3.12 calls its subclasses, too


class BinaryWriter(Top, io.BufferedWriter):
    """The outermost layer of a binary file that is written only."""

    _name = "_io.BufferedWriter"


class Random(Top, io.BufferedRandom):
    """The outermost layer of a binary file that is read, too."""

    _name = "_io.BufferedRandom"


class Unbuffered(Top, Bottom):
    """The only layer of a binary file without a buffer."""

    _name = "_io.FileIO"

    @property
    def bottom(self) -> Bottom:  # type: ignore[override]
        """Return the file itself; held in an attribute, it would not be closed when dropped."""
        return self


def layered(plain: Any, named: dict[str, Any], files: OpenFiles, held: Held) -> Any:
    """Rebuild the open file `plain` in our layers; `named` are the arguments of its `open`."""
    mode, size = named["mode"], named.get("buffering", -1)
    letters = "".join(sorted(set(mode) & set("rwxa+"), reverse=True))
    raw = getattr(plain, "buffer", plain)
    raw = getattr(raw, "raw", raw)
    bottom = (Unbuffered if size == 0 else Bottom)(os.dup(raw.fileno()), letters)
    bottom.name, bottom.files, bottom.held = os.fspath(named["file"]), files, held
    file: Any = bottom
    size = size if size > 1 else max(bottom._blksize, io.DEFAULT_BUFFER_SIZE)  # type: ignore[attr-defined]
    if isinstance(plain, io.TextIOWrapper):
        buffer = (io.BufferedRandom if "+" in mode else io.BufferedWriter)(bottom, size)
        newline, by_line = named.get("newline"), plain.line_buffering
        file = Text(buffer, plain.encoding, plain.errors, newline, by_line)
        file.mode = mode
    elif not isinstance(bottom, Unbuffered):
        file = (Random if "+" in mode else BinaryWriter)(bottom, size)
    if file is not bottom:
        file.bottom = bottom
    plain.close()
    return file
