"""Call each row of the table of writers on 2 and 3 ranks, and compare with one process."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import re
import warnings

import pytest

from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from autoddp.effects.temporary import Temporary
from autoddp.effects.writers import HELD, WRITERS
from autoddp.patching import ABSENT, find
from tests.effects.outward import on_ranks
from tests.effects.test_who_writes import SEEN, watch
from tests.effects.writing import CASES
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.slow

# Where nothing can be written: no such folder, a folder, below a file.
WRONG = ("nowhere/{}", "folder", "plain.txt/{}")
# What belongs to a package, and is not there without another one.
NEEDS = ("ImportError", "ModuleNotFoundError")
# Exceptions that other ranks cannot rebuild: they raise RemoteError with its
# text.
UNMADE = ("CheckpointException", "LibsndfileError")


def there(target):
    """Whether the installed version of a package has the function."""
    name = target.partition(":")[0]
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        return False
    try:
        module = importlib.import_module(name)
    except ImportError:
        return False  # a package that lacks one of its own
    return find(target, module, optional=True)[2] is not ABSENT


def outcome(act, *args):
    """The result, or the exception, as data."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return json.loads(json.dumps(act(*args), default=lambda it: type(it).__name__))
    except BaseException as error:  # torch has one that is no Exception
        last = str(error).strip().rpartition("\n")[2].replace(os.getcwd(), ".")
        # a name made up by safetensors
        return [type(error).__name__, re.sub(r"\.tmp\w+", ".tmp*", last)]


def touched(act, *args):
    """The outcome of a call, and its changes in the folder."""
    begin = len(SEEN)
    return outcome(act, *args), SEEN[begin:]


def calls(cases):
    """Run all cases on this rank: write, read back, and fail."""

    def script(run):
        rank, done = run.world.rank, {}
        for case in cases:
            written = touched(case.write, case.name, rank)
            read = outcome(case.read, case.name)
            wrong = WRONG if run.world.world_size < 3 else ()
            failed = [touched(case.write, path.format(case.name), rank) for path in wrong]
            done[case.target] = (written, read, failed)
        return done

    return script


def names_an_argument(row):
    """Whether the function of a row has the argument for the file name."""
    module = importlib.import_module(row.target.partition(":")[0])
    try:
        return row.argument in inspect.signature(find(row.target, module)[2]).parameters
    except ValueError:  # written in C
        return row.position is not None


def jobs(group, folder):
    """Run all cases by one process and on ranks, in a process with the imports."""
    cases = [case for case in CASES if there(case.target)]
    done = {}
    for nproc in (1, 2, 3):
        at = folder / str(nproc)
        (at / "folder").mkdir(parents=True)
        (at / "plain.txt").touch()
        features = (Files, Folders, Temporary) if nproc > 1 else ()
        done[nproc] = on_ranks(
            calls(cases), nproc, *features, folder=at, before=lambda rank, at=at: watch(at)
        )
    rows = [row for row in (*WRITERS.values(), *HELD) if there(row.target)]
    return done, [row.target for row in rows if not names_an_argument(row)]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The folder, the outcomes of all calls, and the rows with a wrong argument."""
    folder = tmp_path_factory.mktemp("writers")
    (answer,) = run_ranks(jobs, 1, folder, timeout=280)
    return folder, *answer


def contents(path):
    """The bytes of a file, or of all files in a folder."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    return {str(p.relative_to(path)): p.read_bytes() for p in files}


def test_each_row_names_an_argument_of_its_function(results):
    *_, wrong = results
    assert wrong == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.target)
def test_a_writer(case, results):
    folder, done, _ = results
    if case.target not in done[1][0]:
        pytest.skip(f"{case.target} is not installed")
    (plain, _), read, failed = done[1][0][case.target]
    if isinstance(plain, list) and plain and plain[0] in NEEDS:
        assert all(rank[case.target][0][0] == plain for n in (2, 3) for rank in done[n])
        pytest.skip(plain[1])
    for nproc in (2, 3):
        for rank, seen in enumerate(done[nproc]):
            (result, changes), again, wrong = seen[case.target]
            assert (result, again) == (plain, read)
            for (what, _), (expected, _) in zip(wrong, failed, strict=nproc < 3):
                results = (
                    isinstance(expected, list)
                    and expected[0] in UNMADE
                    and what[1].endswith(expected[1])
                )
                assert what == expected or results
            put = [change for change in changes if change.startswith("os.rename ")]
            raises = isinstance(plain, list) and len(plain) == 2
            row = WRITERS.get(case.target)  # what goes through `open` needs none
            assert rank or row is None or len(put) == (not raises)
            assert not rank or not changes + [c for _, more in wrong for c in more]
        if case.exact:
            assert contents(folder / str(nproc) / case.name) == contents(folder / "1" / case.name)


def test_no_temporary_files_are_left(results):
    folder, *_ = results
    plain = {str(p.relative_to(folder / "1")) for p in (folder / "1").rglob("*")}
    ranks = {str(p.relative_to(folder / "2")) for p in (folder / "2").rglob("*")}
    # in this folder files have random names
    assert {n for n in ranks ^ plain if not n.startswith("dcp")} == set()
