"""The whole table of who acts, and the facts of calls that real ranks make."""

import atexit
import gc
import itertools
import os
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.utils.data import DataLoader, Dataset

from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from autoddp.effects.ownership import Caller, anybody, scripts, whose
from autoddp.effects.who_acts import Mode, Place, who_acts
from tests.effects.outward import on_ranks

# The words of the table, and what they stand for.
WHERE = {
    "autoddp, a data set's fetch": {Place.OURS, Place.FETCH},
    "a thread, a child, the end": {Place.APART},
    "the script's thread": {Place.SCRIPT},
}
WHOM = {
    "anybody": {*Caller},
    "any other": {*Caller},
    "Python, compiler": {Caller.RANK},
    "a tracker": {Caller.TRACKER},
    "script, library": {Caller.SCRIPT, Caller.LIBRARY},
}
PATH = {"any": {True, False}, "a rank's own": {True}, "any other": {False}}
ACTS = {
    "each rank": Mode.PASS_THROUGH,
    "rank 0, others in the overlay": Mode.UNSYNCED,
    "rank 0 for all": Mode.SYNCED,
}


def test_the_table_says_who_acts():
    lines = [line.strip() for line in who_acts.__doc__.splitlines()]
    first, second, third = (n for n, line in enumerate(lines) if line.startswith("==="))
    assert second == first + 2
    rows = [re.split(r"\s{2,}", line) for line in lines[second + 1 : third]]
    used = set()
    for place, caller, own in itertools.product(Place, Caller, (True, False)):
        number, acts = next(
            (number, acts)
            for number, (where, whom, path, acts) in enumerate(rows)
            if place in WHERE[where] and caller in WHOM[whom] and own in PATH[path]
        )
        assert who_acts(place, caller, own) is ACTS[acts], (place, caller, own)
        used.add(number)
    assert used == {*range(len(rows))}, "no row is there for nothing"


class Placed(Dataset):
    def __init__(self, effects):
        self.effects = effects

    def __len__(self):
        return 1

    def __getitem__(self, at):
        return [*Place].index(self.effects.place())


class Finalized:
    def __init__(self, effects, found):
        self.effects, self.found, self.itself = effects, found, self

    def __del__(self):
        self.found.append(self.effects.place())


def in_child(act):
    """What a fork returns, by the number of its place."""
    child = os.fork()
    if child == 0:
        os._exit([*Place].index(act()))
    return [*Place][os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]


def test_the_place_of_a_call_is_known():
    def script(run):
        effects, found = run.effects, []
        with effects.context.internal():
            inner = effects.place()
            Finalized(effects, found)
            gc.collect()
            child = in_child(effects.place)
        with ThreadPoolExecutor(1) as pool:
            thread = pool.submit(effects.place).result()
        loaders = [DataLoader(Placed(effects), num_workers=workers) for workers in (0, 1)]
        fetched = [[*Place][int(batch)] for loader in loaders for batch in loader]
        places = effects.place(), inner, found, child, thread, fetched
        effects.context.ending = True
        late = effects.place()
        effects.context.ending, effects.context.over = False, True
        after = effects.place()
        effects.context.over = False
        return *places, late, after

    apart, fetch = Place.APART, Place.FETCH
    expected = Place.SCRIPT, Place.OURS, [apart], apart, apart, [fetch] * 2, apart, Place.OURS
    assert on_ranks(script, 2, Files) == [expected] * 2
    in_local_view = on_ranks(lambda run: run.effects.place(), 2, Files, view="local")
    assert in_local_view == [apart] * 2, "there ranks wait for nobody"


def by(file, act):
    """Call `act` from a file of this name."""
    space = {"act": act}
    exec(compile("def call():\n    return act()", file, "exec"), space)
    return space["call"]()


INSTALLED = "/x/site-packages/"
CALLS = {
    "script": (lambda act: act(), Caller.SCRIPT),
    "library": (lambda act: by(f"{INSTALLED}lib/a.py", act), Caller.LIBRARY),
    "tracker": (lambda act: by(f"{INSTALLED}wandb/a.py", act), Caller.TRACKER),
    "for a tracker": (
        lambda act: by(f"{INSTALLED}wandb/a.py", lambda: by(f"{INSTALLED}lib/a.py", act)),
        Caller.LIBRARY,  # this file's lambda is between: a tracker has called the script
    ),
    "compiler": (lambda act: by(f"{INSTALLED}triton/a.py", act), Caller.RANK),
    "pool": (lambda act: by(f"{INSTALLED}torch/multiprocessing/a.py", act), Caller.RANK),
    "import": (lambda act: by("<frozen importlib._bootstrap>", act), Caller.RANK),
    "traceback": (lambda act: by(f"{os.path.dirname(os.__file__)}/linecache.py", act), Caller.RANK),
}


@pytest.mark.parametrize("name", CALLS)
def test_whose_call_it_is(name):
    call, expected = CALLS[name]
    # `whose` is asked by a frame of the standard library: whoever called that owns the call
    space = {"whose": whose}
    source = "def ask():\n    return whose()"
    exec(compile(source, f"{os.path.dirname(os.__file__)}/shutil.py", "exec"), space)
    assert call(space["ask"]) is expected
    assert (scripts()() is Caller.SCRIPT, anybody()) == (True, Caller.SCRIPT)


@pytest.mark.parametrize("how", ["thread", "pool", "at exit"])
def test_a_builtin_function_that_a_thread_runs_acts_once(tmp_path, how):
    """No frame of the script is there, nor of a library."""

    def script(run):
        open("kept", "w").close()
        if how == "thread":
            thread = threading.Thread(target=os.remove, args=("kept",))
            thread.start()
            thread.join()
        elif how == "pool":
            with ThreadPoolExecutor(1) as pool:
                pool.submit(os.remove, "kept").result()
        else:
            atexit._clear()
            atexit.register(os.remove, "kept")
            run.effects.context.ending = True
            atexit._run_exitfuncs()
            run.effects.context.ending = False
        run.group.barrier()
        return os.path.exists("kept")

    def watch(rank):
        def hook(event, args):
            if event == "os.remove" and rank and os.path.abspath(args[0]) == f"{tmp_path}/kept":
                (tmp_path / "removed by rank 1").mkdir(exist_ok=True)

        sys.addaudithook(hook)

    assert on_ranks(script, 2, Files, Folders, folder=tmp_path, before=watch) == [False] * 2
    assert [path.name for path in tmp_path.iterdir()] == []
