"""Errors of rank 0's writes where ranks do not meet: raised on all ranks where they do.

A plain `f.write` is no meeting of ranks: that would cost more than most writes. So the error of one
waits, at most until the file is flushed or closed, or until any file or folder is changed.
"""

from __future__ import annotations

from autoddp.errors import AutoDDPError


class DeferredError:
    """The error of a write to a file, of which nothing more is known to be on the disk."""

    def __init__(self, path: str, error: OSError) -> None:
        self.path, self.error = path, error
        self.reported = False


class DeferredErrors:
    """The errors that the script has not been told of by their own file."""

    def __init__(self) -> None:
        self._owed: list[DeferredError] = []

    def note(self, path: str, error: OSError) -> DeferredError:
        """Note that a write to `path` failed; the script goes on for now."""
        loss = DeferredError(path, error)
        self._owed.append(loss)
        return loss

    def tell(self) -> None:
        """Raise the next error that was not raised yet, with its path: another file is in use here.

        The error stays owed by its own file: who handles errors here may not mean that file.
        """
        for loss in self._owed:
            if not loss.reported:
                loss.reported = True
                raise OSError(loss.error.errno, loss.error.strerror, loss.path)

    def settle(self, loss: DeferredError) -> None:
        """Raise the error at the flush or close of its own file, as one process would."""
        self._owed.remove(loss)
        raise loss.error

    def end(self) -> None:
        """Raise one error at the end of the script for all that are still owed.

        Raises:
            AutoDDPError: A file that was written is not complete, and none of its flushes or closes
                said so.
        """
        owed, self._owed = self._owed, []
        if owed:
            named = "; ".join(f"{loss.path}: {loss.error.strerror}" for loss in owed)
            raise AutoDDPError(
                f"what was written is not all there: {named}; close files to be told in time"
            )
