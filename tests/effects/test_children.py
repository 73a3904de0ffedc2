"""Worker processes of the script: each rank starts its own, and their side effects happen once."""

import multiprocessing
import os
import time
from concurrent import futures as futures_of
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from autoddp.comm.context import Code
from autoddp.effects.children import Children
from autoddp.effects.exchanges import QUEUE
from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from autoddp.effects.programs import Programs
from tests.effects.outward import on_ranks, raised

pytestmark = pytest.mark.slow

ALL = (Files, Folders, Programs, Children)
FORK = multiprocessing.get_context("fork")


def alike(script, nproc, folder):
    """The result, which must be equal on all ranks."""
    first, *others = on_ranks(script, nproc, *ALL, folder=folder)
    assert others == [first] * (nproc - 1)
    return first


LEADS: list[bool] = []  # of this process: each rank is a fork


def ready(run):
    if run.world.rank == 0:
        LEADS.append(True)


def later(number, results=None):
    """Return results in the order of tasks, though ranks differ in which is ready first."""
    time.sleep(0.1 * (number if LEADS else 3 - number))
    if results is not None:
        results.put({"number": number, "row": [float(number)] * 2})
    return number


TAKEN: list = []  # in a worker of a pool: the queue


def take(results):
    TAKEN.append(results)


def later_of_pool(number):
    return later(number, *TAKEN)


def test_results_of_workers_are_in_the_same_order(tmp_path):
    def script(run):
        ready(run)
        results = FORK.Queue()
        with FORK.Pool(3, take, (results,)) as pool:
            pool.map(later_of_pool, range(3), 1)
            found = sorted(results.get()["row"] for _ in range(3))
        said = run.group.call("said", lambda: [one.what for one in run.report.of("children")])
        with ProcessPoolExecutor(3, FORK) as one, ThreadPoolExecutor(3) as other:
            futures = {
                one.submit(later, 2): "two",
                other.submit(later, 0): "none",
                one.submit(later, 1): "one",
            }
            done = [
                (futures[future], future.result()) for future in futures_of.as_completed(futures)
            ]
        return found, said, done

    found, said, done = alike(script, 2, tmp_path)
    assert found == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    assert said == [f"multiprocessing.queues.Queue.get: {QUEUE}"]
    assert done == [("two", 2), ("none", 0), ("one", 1)]


def produce(*shared):
    """Give what rank 0 alone has, by each thing in `shared`."""
    for number, each in enumerate(shared):
        getattr(each, "put", getattr(each, "send", None))((number, len(LEADS), os.getpid()))


def test_what_processes_give_is_rank_0s(tmp_path):
    def script(run):
        ready(run)
        (here, there), queues = FORK.Pipe(), [FORK.Queue(), FORK.SimpleQueue(), FORK.Queue()]
        producer = FORK.Process(target=produce, args=(*queues, there))
        producer.start()
        found = [queues[0].get(), queues[1].get(), here.recv()]
        thread = ThreadPoolExecutor(1)
        ahead = thread.submit(queues[2].get).result()
        producer.join()
        return [*found, ahead], producer.pid, producer.exitcode

    found, pid, code = alike(script, 2, tmp_path)
    assert found == [(0, 1, pid), (1, 1, pid), (3, 1, pid), (2, 1, pid)]
    assert code == 0


def test_a_fetch_cannot_ask_for_rank_0s_items(tmp_path):
    def script(run):
        queue = FORK.Queue()
        producer = FORK.Process(target=produce, args=(queue,))
        producer.start()
        with run.group.context.within(Code.FETCH):
            if run.world.rank:
                return raised(queue.get)[0], raised(queue.get)[1].split(":")[0]
            return queue.get() and ("OutOfReach", "Queue.get")

    assert alike(script, 2, tmp_path) == ("OutOfReach", "Queue.get")


def job(number):
    """Like `add`, for a spawned process."""
    time.sleep(0.3 if os.environ["JOBS_LEAD"] == "0" else 0)
    with open("all", "a") as file:
        file.write("x")
    return number * number


def test_files_of_joblib_workers_are_written_once(tmp_path):
    def script(run):
        import joblib  # comes with scikit-learn, which the tests need

        os.environ["JOBS_LEAD"] = f"{run.world.rank}"
        with joblib.parallel_config("loky", n_jobs=2):
            found = joblib.Parallel()(joblib.delayed(job)(number) for number in range(5))
        return found, Path("all").read_text()

    assert alike(script, 2, tmp_path) == ([0, 1, 4, 9, 16], "xxxxx")
    assert (tmp_path / "all").read_text() == "xxxxx"


SPAWNED = """
import multiprocessing
from pathlib import Path

def work(number):
    with open("all", "a") as file:
        file.write("x")
    Path(f"part{number}").write_text("mine")
    return Path(f"part{number}").read_text()

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, [1, 2]), Path("all").read_text(), Path("part2").read_text())
"""


def test_files_of_spawned_workers_are_written_once(tmp_path):
    from tests.support.cli import fork_cli

    (tmp_path / "script.py").write_text(SPAWNED)
    done = fork_cli("run", "-n", "2", "script.py", cwd=tmp_path, timeout=240)
    assert (done.rc, done.out) == (0, "['mine', 'mine'] xx mine\n"), done.err
    assert (tmp_path / "all").read_text() == "xx"
