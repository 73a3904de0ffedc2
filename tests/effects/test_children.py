"""Worker processes of the script's own: each rank has its own, and what they do is done once."""

import multiprocessing
import os
import shutil
import subprocess
import tempfile
import threading
import time
from concurrent import futures as futures_of
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from autoddp.effects.children import QUEUE, Children
from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from autoddp.effects.programs import Programs
from tests.effects.outward import on_ranks, raised

pytestmark = pytest.mark.slow

ALL = (Files, Folders, Programs, Children)
FORK = multiprocessing.get_context("fork")


def alike(script, nproc, folder):
    """What all ranks return, which is the same."""
    first, *others = on_ranks(script, nproc, *ALL, folder=folder)
    assert others == [first] * (nproc - 1)
    return first


def add(number):
    """Write a file, read it, add to another: slower on rank 0, so that nobody waits by chance."""
    time.sleep(0.2 if LEADS else 0)
    Path(f"part{number}").write_text(f"{number}")
    assert Path(f"part{number}").read_text() == f"{number}"
    with open("all", "a") as file:
        file.write("x")
    return number * number


LEADS: list[bool] = []  # of this process: each rank is a fork


def ready(run):
    if run.world.rank == 0:
        LEADS.append(True)


@pytest.mark.parametrize("nproc", [2, 3])
def test_a_pools_files_are_written_once(nproc, tmp_path):
    def script(run):
        ready(run)
        with FORK.Pool(2) as pool:
            found = [pool.map(add, range(3)), Path("part2").read_text(), Path("all").read_text()]
            found += [pool.apply_async(add, (3,)).get(60), Path("part3").read_text()]
            found += [list(pool.imap(add, [4, 5])), Path("part5").read_text()]
            found += [list(pool.imap_unordered(add, [7, 6])), sorted(os.listdir("."))]
            pool.close()
            pool.join()
        return found, Path("all").read_text()

    found, everything = alike(script, nproc, tmp_path)
    assert found[:7] == [[0, 1, 4], "2", "xxx", 9, "3", [16, 25], "5"]
    assert found[7] == [49, 36]
    assert everything == "x" * 8


def test_processes_and_executors_too(tmp_path):
    def script(run):
        ready(run)
        process = FORK.Process(target=add, args=(1,))
        process.start()
        process.join()
        found = [Path("part1").read_text(), process.exitcode, process.is_alive()]
        with ProcessPoolExecutor(2, FORK) as executor:
            found += [executor.submit(add, 2).result(), Path("part2").read_text()]
            found += [list(executor.map(add, [3, 4])), Path("part4").read_text()]
            executor.submit(add, 5)
        return [*found, Path("part5").read_text(), Path("all").read_text()]

    assert alike(script, 2, tmp_path) == ["1", 0, False, 4, "2", [9, 16], "4", "5", "xxxxx"]


def program(number):
    return subprocess.check_output(f"echo x >> calls; echo {number}", shell=True, text=True)


def test_programs_of_worker_processes_are_every_ranks(tmp_path):
    def script(run):
        with FORK.Pool(2) as pool:
            return pool.map(program, [1, 2, 2, 2], chunksize=1)

    assert alike(script, 2, tmp_path) == ["1\n", "2\n", "2\n", "2\n"]
    assert (tmp_path / "calls").read_text() == "x\n" * 8


def later(number, results=None):
    """The later one is asked first; ranks differ in who is quick."""
    time.sleep(0.1 * (number if LEADS else 3 - number))
    if results is not None:
        results.put({"number": number, "row": [float(number)] * 2})
    return number


def test_results_come_in_one_order(tmp_path):
    def script(run):
        ready(run)
        results = FORK.Queue()
        processes = [FORK.Process(target=later, args=(number, results)) for number in range(3)]
        for process in processes:
            process.start()
        found = sorted(results.get()["row"] for _ in processes)
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


def fail(number):
    raise KeyError(number)


def test_what_fails_in_a_worker_fails_on_all(tmp_path):
    def script(run):
        with FORK.Pool(1) as pool:
            late = raised(lambda: pool.apply_async(time.sleep, (1,)).get(0.01))
            return late[0], raised(lambda: pool.map(fail, [3]))

    assert alike(script, 2, tmp_path) == ("TimeoutError", ("KeyError", "3"))


def test_scratch_goes_away(tmp_path):
    made = tmp_path / "tmp"
    made.mkdir()

    def before(rank):
        os.environ["TMPDIR"], tempfile.tempdir = str(made), None

    def script(run):
        with FORK.Pool(2) as pool:
            pool.map(add, range(3))
            pool.close()
            pool.join()
        with run.effects.context.internal():
            return list(made.glob("autoddp-*/*")) if run.world.rank else []

    _, second = on_ranks(script, 2, *ALL, folder=tmp_path, before=before)
    assert second
    assert not list(made.iterdir())


def job(number):
    """As `add`, for a fresh process."""
    time.sleep(0.3 if os.environ["JOBS_LEAD"] == "0" else 0)
    with open("all", "a") as file:
        file.write("x")
    return number * number


def test_what_joblibs_workers_write_is_written_once(tmp_path):
    def script(run):
        import joblib  # comes with scikit-learn, which the tests need

        os.environ["JOBS_LEAD"] = f"{run.world.rank}"
        with joblib.parallel_config("loky", n_jobs=2):
            found = joblib.Parallel()(joblib.delayed(job)(number) for number in range(5))
        return found, Path("all").read_text()

    assert alike(script, 2, tmp_path) == ([0, 1, 4, 9, 16], "xxxxx")
    assert (tmp_path / "all").read_text() == "xxxxx"


def test_workers_that_a_pool_replaces_from_its_thread_write_once(tmp_path):
    def script(run):
        os.environ["JOBS_LEAD"] = f"{run.world.rank}"
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            return pool.map(job, range(2), chunksize=1), Path("all").read_text()

    assert alike(script, 2, tmp_path) == ([0, 1], "xx")
    assert (tmp_path / "all").read_text() == "xx"


class Cached(Dataset):
    """Each worker of a loader keeps what it has made."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        with open(f"cache{index}", "a") as file:
            file.write("x")
        return torch.tensor(index)


def test_a_loaders_workers_are_left_alone(tmp_path):
    def script(run):
        return [
            batch.tolist()
            for batch in DataLoader(Cached(), 2, num_workers=1, multiprocessing_context=FORK)
        ]

    alike(script, 2, tmp_path)
    assert (tmp_path / "cache0").read_text() == "xx"


def test_threads_use_pools_as_they_like(tmp_path):
    def script(run):
        found = []
        with FORK.Pool(1) as pool:
            thread = threading.Thread(target=lambda: found.extend(pool.map(abs, [-1, -2])))
            thread.start()
            thread.join()
        return found

    assert alike(script, 2, tmp_path) == [1, 2]


def several(number):
    """Make, rename, add to, replace and copy files of one's own, and read them."""
    os.makedirs(f"of{number}", exist_ok=True)
    Path(f"of{number}/a").write_text(f"{number}")
    os.replace(f"of{number}/a", f"of{number}/b")
    with open(f"of{number}/b", "a") as file:
        file.write("+")
    if os.path.exists(f"of{number}/c"):
        os.remove(f"of{number}/c")
    shutil.copy(f"of{number}/b", f"of{number}/c")
    return Path(f"of{number}/b").read_text() + Path(f"of{number}/c").read_text()


def test_threads_find_what_they_have_written_however_far_other_ranks_are(tmp_path):
    def script(run):
        found = []
        for _ in range(3):
            with ThreadPoolExecutor(3) as pool:
                found.append(list(pool.map(several, range(8))))
        return found, Path("of7/c").read_text(), sorted(os.listdir("of7"))

    rows = [f"{number}+{number}+" for number in range(8)]
    assert alike(script, 3, tmp_path) == ([rows] * 3, "7+", ["b", "c"])


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


def test_fresh_interpreters_write_once_too(tmp_path):
    from tests.support.cli import fork_cli

    (tmp_path / "script.py").write_text(SPAWNED)
    done = fork_cli("run", "-n", "2", "script.py", cwd=tmp_path, timeout=240)
    assert (done.rc, done.out) == (0, "['mine', 'mine'] xx mine\n"), done.err
    assert (tmp_path / "all").read_text() == "xx"
