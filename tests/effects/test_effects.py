import functools
import os
import sys
import threading

import pytest

from autoddp.effects.engine import Mode
from autoddp.effects.files import Files
from autoddp.effects.ownership import caller, users_call
from tests.effects.outward import on_ranks


def called_from(filename, source="def act(f): return f()"):
    space = {}
    exec(compile(source, filename, "exec"), space)
    return space["act"]


OWNERS = {
    "train.py": True,
    "/x/lib/python3.11/site-packages/lib/a.py": False,
    "/usr/lib/python3/dist-packages/lib/a.py": False,
    os.path.join(os.path.dirname(os.__file__), "json", "__init__.py"): True,  # it is called by us
    os.path.join(os.path.dirname(os.__file__), "linecache.py"): False,
    "<frozen importlib._bootstrap>": False,
}


@pytest.mark.parametrize(("filename", "users"), OWNERS.items(), ids=OWNERS)
def test_whose_call_it_is(filename, users):
    assert called_from(filename)(users_call) is users


def test_the_nearest_frame_that_is_not_pythons_tells():
    library = called_from("/x/site-packages/lib.py")
    shutil = called_from(os.path.join(os.path.dirname(os.__file__), "shutil.py"))
    assert not library(functools.partial(shutil, users_call))
    assert shutil(functools.partial(library, users_call)) is False
    assert caller() == __file__


def test_where_ranks_agree():
    def script(run):
        effects, seen = run.effects, []
        seen.append(effects.mode())
        with effects.context.internal():
            seen.append(effects.mode())
        thread = threading.Thread(target=lambda: seen.append(effects.mode()))
        thread.start()
        thread.join()
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(writer, effects.mode().name.encode())
            os._exit(0)
        seen.append(Mode[os.read(reader, 20).decode()])
        return seen

    expected = [Mode.SYNCED, Mode.PASS_THROUGH, Mode.UNSYNCED]
    # what a child of rank 0 writes is written; the children of its equals do the same once more
    assert on_ranks(script, 2, Files) == [
        [*expected, Mode.PASS_THROUGH],
        [*expected, Mode.UNSYNCED],
    ]
    assert on_ranks(lambda run: run.effects.mode(), 2, Files, view="local") == [Mode.UNSYNCED] * 2


def test_every_file_that_declares_a_patch_is_seen_through():
    from autoddp.process.features import FEATURES

    for feature in FEATURES:
        file = sys.modules[feature.__module__].__file__
        assert called_from(file)(users_call) is True, file
