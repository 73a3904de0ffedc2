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


def test_libraries_threads_and_workers_read_their_own_clock(on, tmp_path):
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
