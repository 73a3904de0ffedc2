"""Writes that failed on rank 0 where ranks do not meet: raised on all of them where they do.

A plain `f.write` is no meeting of ranks: that would cost more than most writes. So what fails in
one waits, at most until the file is flushed or closed, or until any file or folder is changed.
"""

from __future__ import annotations

from autoddp.errors import AutoDDPError


class DeferredError:
    """What a file failed to take; nothing more of it is known to be on the disk."""

    def __init__(self, path: str, error: OSError) -> None:
        self.path, self.error = path, error
        self.told = False


class DeferredErrors:
    """All of them that the script has not been told of by their own file."""

    def __init__(self) -> None:
        self._owed: list[DeferredError] = []

    def note(self, path: str, error: OSError) -> DeferredError:
        """A write failed, and the script goes on for now."""
        loss = DeferredError(path, error)
        self._owed.append(loss)
        return loss

    def tell(self) -> None:
        """Raise the next that was not raised yet, with its path, since this is another file's place.

        It stays owed by its own file: whoever handles errors of this place may not mean that one.
        """
        for loss in self._owed:
            if not loss.told:
                loss.told = True
                raise OSError(loss.error.errno, loss.error.strerror, loss.path)

    def settle(self, loss: DeferredError) -> None:
        """Raise it at the flush or close of its own file, as one process would."""
        self._owed.remove(loss)
        raise loss.error

    def end(self) -> None:
        """The script is over.

        Raises:
            AutoDDPError: A file that was written is not complete, and none of its flushes or closes said so.
        """
        owed, self._owed = self._owed, []
        if owed:
            told = "; ".join(f"{loss.path}: {loss.error.strerror}" for loss in owed)
            raise AutoDDPError(f"what was written is not all there: {told}; close files to be told in time")
