"""The private folder of a rank is one, whichever threads ask for it first."""

from __future__ import annotations

import os
import threading

from autoddp.comm.place import HERE
from autoddp.effects import paths
from autoddp.effects.scratch import Scratch


def test_threads_that_ask_at_once_have_one_folder(monkeypatch, tmp_path):
    together, plain = threading.Barrier(4), paths.fresh

    def fresh(beside):
        together.wait()  # all have seen that there is no folder yet
        return plain(beside)

    monkeypatch.setattr(paths, "fresh", fresh)
    monkeypatch.setattr(HERE, "private", str(tmp_path))
    scratch, found = Scratch(), []
    threads = [threading.Thread(target=lambda: found.append(scratch.ready())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert set(found) == {scratch.ready()}
    assert os.path.isdir(found[0])
    scratch.hear()
    paths.remove(found[0])
