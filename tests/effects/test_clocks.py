import datetime
import threading
import time
import timeit

import pytest

from autoddp.effects.clocks import Clocks
from tests.effects.outward import on_ranks


@pytest.fixture
def on(tmp_path):
    return lambda script, nproc=2, **kw: on_ranks(script, nproc, Clocks, folder=tmp_path, **kw)


class Stamp(datetime.datetime):
    """A user's subclass of datetime."""


READINGS = {
    "time": lambda: time.time(),
    "time_ns": lambda: time.time_ns(),
    "monotonic": lambda: time.monotonic(),
    "perf_counter": lambda: time.perf_counter(),
    "perf_counter_ns": lambda: time.perf_counter_ns(),
    "process_time": lambda: time.process_time(),
    "default_timer": lambda: timeit.default_timer(),
    "localtime": lambda: time.localtime(),
    "gmtime": lambda: time.gmtime(),
    "ctime": lambda: time.ctime(),
    "asctime": lambda: time.asctime(),
    "strftime": lambda: time.strftime("%Y-%m-%d %H:%M:%S"),
    "now": lambda: datetime.datetime.now(),
    "now utc": lambda: datetime.datetime.now(datetime.UTC),
    "utcnow": lambda: datetime.datetime.utcnow(),
    "today": lambda: datetime.datetime.today(),
    "date": lambda: datetime.date.today(),
    "own kind": lambda: Stamp.now(),
}


@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow")
def test_clocks_return_rank_0s_time(on):
    def script(run):
        time.sleep(0.02 * run.world.rank)
        return {name: ([read() for _ in range(3)], type(read())) for name, read in READINGS.items()}

    zero, one, two = on(script, 3)
    assert zero == one == two
    for name, (values, kind) in zero.items():
        assert isinstance(values[0], str) or values == sorted(values)
        assert kind is type(READINGS[name]())


POLLS = """
import time

def polls(limit, pause):
    count, start = 0, time.monotonic()
    while time.monotonic() - start < limit:
        count += 1
        time.sleep(pause)
    return count
"""


def of_package(folder, package):
    """What a file of a package defines, where packages are installed."""
    space = {}
    file = folder / "site-packages" / package / "polls.py"
    exec(compile(POLLS, str(file), "exec"), space)
    return space["polls"]


def test_a_library_waits_until_rank_0s_time_is_over(on, tmp_path):
    """As locks, time limits and searches do: ranks that give up at other times go other ways."""

    def script(run):
        return of_package(tmp_path, "lib")(0.2, 0.002 + 0.003 * run.world.rank)

    zero, one, two = on(script, 3)
    assert zero == one == two > 2


@pytest.mark.parametrize("package", ["torch/_inductor", "tqdm", "joblib", "wandb"])
def test_compilers_bars_pools_and_trackers_read_their_own_clock(on, tmp_path, package):
    def script(run):
        return of_package(tmp_path, package)(0.2, 0.002 + 0.1 * run.world.rank)

    zero, one = on(script)
    assert zero > one


def test_threads_and_workers_read_their_own_clock(on):
    def script(run):
        seen = []
        thread = threading.Thread(target=lambda: seen.extend(time.time() for _ in range(2)))
        thread.start()
        thread.join()
        return seen, time.time()

    (zero, same), (one, agreed) = on(script)
    assert same == agreed
    assert zero != one  # one of them may fall into one microsecond, hardly both
