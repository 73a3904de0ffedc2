import functools
import gc
import os
import sys
import threading
from contextlib import ExitStack

import pytest

import autoddp
from autoddp.comm.context import Context
from autoddp.effects.engine import Mode
from autoddp.effects.ownership import caller, users_call
from autoddp.patching import Call, Feature
from tests.effects.outward import on_ranks
from tests.support.ranks import run_ranks


def called_from(filename, source="def act(f): return f()"):
    space = {}
    exec(compile(source, filename, "exec"), space)
    return space["act"]


OWNERS = {
    "train.py": True,
    "/home/me/train.py": True,
    "/x/lib/python3.11/site-packages/lib/a.py": False,
    "/usr/lib/python3/dist-packages/lib/a.py": False,
    os.path.join(os.path.dirname(os.__file__), "json", "__init__.py"): True,  # it is called by us
    os.path.join(os.path.dirname(os.__file__), "linecache.py"): False,
    os.path.join(os.path.dirname(os.__file__), "importlib", "__init__.py"): False,
    "<frozen posixpath>": True,
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


def test_a_call_is_read_by_name_and_made_with_other_values():
    def f(a, *rest, b=2, **more):
        return a, rest, b, more

    call = Call(f, (1, 2, 3), {"c": 4})
    assert call.named == {"a": 1, "rest": (2, 3), "more": {"c": 4}}
    assert call.plain() == (1, (2, 3), 2, {"c": 4})
    assert call.changed(a=9, b=8) == (9, (2, 3), 8, {"c": 4})
    assert Call(f, (), {}).named == {}


def test_a_method_is_read_by_name_too():
    class C:
        def f(self, a, b=2):
            return self, a, b

    c = C()
    call = Call(c.f, (1,), {})
    assert call.named == {"self": c, "a": 1}
    assert call.changed(a=3) == (c, 3, 2)


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

    from autoddp.effects.files import Files

    expected = [Mode.SYNCED, Mode.PASS_THROUGH, Mode.UNSYNCED]
    # what a child of rank 0 writes is written; the children of its equals do the same once more
    assert on_ranks(script, 2, Files) == [
        [*expected, Mode.PASS_THROUGH],
        [*expected, Mode.UNSYNCED],
    ]
    assert on_ranks(lambda run: run.effects.mode(), 2, Files, view="local") == [Mode.UNSYNCED] * 2


def test_after_the_session_everything_is_plain():
    from autoddp.effects.files import Files
    from tests.effects.outward import installed

    def rank(group):
        with installed(group, Files) as run:
            run.effects.overlay.new("x")
            folder = run.effects.overlay._folder
        return run.effects.mode(), os.path.exists(folder)

    assert run_ranks(rank, 2) == [(Mode.PASS_THROUGH, False)] * 2


def test_the_collector_is_watched_again_after_the_undo():
    class Cycle:
        def __init__(self):
            self.me = self

        def __del__(self):
            seen.append(context.collecting)

    seen, context = [], Context()
    for _ in range(2):
        with ExitStack() as undo:
            context.watch_collector(undo)
            context.watch_collector(undo)  # by another feature
            Cycle()
            gc.collect()
        Cycle()
        gc.collect()
    assert seen == [True, False] * 2


def test_every_feature_of_the_outside_world_undoes_exactly():
    from autoddp.effects.children import Children
    from autoddp.effects.clocks import Clocks
    from autoddp.effects.console import Console
    from autoddp.effects.downloads import Downloads
    from autoddp.effects.files import Files
    from autoddp.effects.folders import Folders
    from autoddp.effects.programs import Programs
    from autoddp.effects.randomness import Randomness
    from autoddp.effects.temporary import Temporary
    from autoddp.patching import ABSENT, find
    from tests.effects.outward import installed

    features: list[type[Feature]] = [
        Randomness,
        Clocks,
        Files,
        Folders,
        Temporary,
        Downloads,
        Programs,
        Children,
        Console,
    ]

    def slots():
        import importlib

        for feature in features:
            for patch in feature.patches():
                for target in patch.targets:
                    name = target.partition(":")[0]
                    try:
                        module = importlib.import_module(name)
                    except ImportError:
                        assert patch.optional
                        continue
                    owner, attribute, there = find(target, module, optional=patch.optional)
                    if there is not ABSENT:
                        yield target, vars(owner).get(attribute, ABSENT)

    def rank(group):
        list(slots())  # what these imports replace themselves is none of ours
        before = dict(slots())
        with installed(group, *features):
            during = dict(slots())
        after = dict(slots())
        changed = [t for t in before if before[t] is not during[t]]
        return len(before) - len(changed), [t for t in before if before[t] is not after[t]]

    unchanged = run_ranks(rank, 2)[0]
    assert unchanged == (0, [])


@pytest.mark.parametrize("package", ["effects", "training"])
def test_a_new_file_of_a_feature_is_ours_and_no_library(package):
    """Whoever called the feature tells whose call it is: no list of its files is to be kept."""
    from autoddp.tools.verify import command

    folder = os.path.join(os.path.dirname(autoddp.__file__), package)
    through = called_from(os.path.join(folder, "not_there_yet.py"))
    assert through(users_call) is True  # as its caller's, which is this file
    assert called_from("/x/site-packages/lib.py")(functools.partial(through, users_call)) is False
    assert called_from(command.__file__)(users_call) is False


def test_every_file_that_declares_a_patch_is_seen_through():
    from autoddp.process.features import FEATURES

    for feature in FEATURES:
        file = sys.modules[feature.__module__].__file__
        assert called_from(file)(users_call) is True, file
