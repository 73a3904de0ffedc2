import datetime
import sys
import threading
import time
import timeit
import warnings

import pytest
import torch

from autoddp.effects.clocks import Clocks
from tests.effects.outward import installed, on_ranks
from tests.support.ranks import run_ranks


@pytest.fixture
def on(tmp_path):
    return lambda script, nproc=2, **kw: on_ranks(script, nproc, Clocks, folder=tmp_path, **kw)


class Stamp(datetime.datetime):
    """A user's own kind of date."""


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
@pytest.mark.parametrize("read", READINGS.values(), ids=READINGS)
def test_a_reading_is_rank_0s(on, read):
    def script(run):
        time.sleep(0.02 * run.world.rank)
        return [read() for _ in range(3)], type(read())

    zero, one, two = on(script, 3)
    assert zero == one == two
    assert zero[0] == sorted(zero[0]) or isinstance(zero[0][0], str)
    assert zero[1] is type(read())


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 warns of utcnow")
def test_a_deprecation_is_of_the_users_line(on):
    def script(run):
        with pytest.warns(DeprecationWarning, match="utcnow") as seen:
            datetime.datetime.utcnow()
        return [(str(one.message), one.filename) for one in seen]

    with pytest.warns(DeprecationWarning, match="utcnow") as plain:
        datetime.datetime.utcnow()
    assert on(script, 2) == [[(str(plain[0].message), __file__)]] * 2


def test_a_reading_is_the_present(on):
    def script(run):
        return time.time(), datetime.datetime.now(), time.localtime(0), time.strftime("%Y")

    now, date, epoch, year = on(script)[0]
    assert abs(now - time.time()) < 60
    assert abs((date - datetime.datetime.now()).total_seconds()) < 60
    assert epoch == time.localtime(0)
    assert year == time.strftime("%Y")


def test_what_is_measured_is_rank_0s(on):
    def script(run):
        took = [timeit.timeit(lambda: time.sleep(1e-4), number=3), *timeit.repeat("1", repeat=2)]
        return took, timeit.Timer("sum(range(9))").autorange()

    zero, one = on(script)
    assert zero == one


def test_a_time_budget_ends_at_the_same_step_on_all_ranks(on):
    def script(run):
        steps, end = 0, time.monotonic() + 0.2
        while time.monotonic() < end:
            time.sleep(0.005 * (1 + run.world.rank))
            steps += 1
        return steps

    zero, one = on(script)
    assert zero == one > 1


def test_libraries_other_threads_and_workers_read_their_own(on, tmp_path):
    library = tmp_path / "site-packages" / "lib.py"

    def script(run):
        space = {}
        exec(compile("import time\ndef read(): return time.time()", str(library), "exec"), space)
        seen = [space["read"]()]
        thread = threading.Thread(target=lambda: seen.append(time.time()))
        thread.start()
        thread.join()
        return seen, time.time()

    (zero, same), (one, agreed) = on(script)
    assert same == agreed
    assert len(zero) == 2
    assert zero != one  # one of them may fall into one microsecond, hardly both


def test_more_readings_than_the_store_keeps(on):
    zero, one = on(lambda run: [time.time() for _ in range(1100)])
    assert zero == one


def test_the_local_view_reads_its_own(on):
    def script(run):
        time.sleep(0.02 * run.world.rank)
        return time.time()

    zero, one = on(script, view="local")
    assert zero != one


def test_undo_puts_the_clocks_back():
    def rank(group):
        before = time.time, vars(datetime.datetime)["now"]
        with installed(group, Clocks):
            during = time.time, vars(datetime.datetime)["now"]
        after = time.time, vars(datetime.datetime)["now"]
        return [a is b for a, b in zip(before, after, strict=True)], [
            a is b for a, b in zip(before, during, strict=True)
        ]

    assert run_ranks(rank, 2) == [([True, True], [False, False])] * 2


def test_a_compiled_function_reads_the_clock_without_a_word(on):
    def script(run):
        @torch.compile(backend="eager")
        def timed(x):
            return time.time(), x + 1

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return timed(torch.ones(2))[0]

    zero, one = on(script)
    assert zero == one
