"""Writers where a library calls them for itself, where they add to a file, where nobody waits."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from autoddp.effects.temporary import Temporary
from tests.effects.outward import on_ranks

pytestmark = pytest.mark.slow

NEEDED = ("pandas", "pyarrow", "h5py", "safetensors", "tensorboard", "wandb", "joblib")
needs_pandas = pytest.mark.skipif(not find_spec("pandas"), reason="pandas is not installed")
needs_joblib = pytest.mark.skipif(not find_spec("sklearn"), reason="scikit-learn is not installed")
if find_spec("joblib"):
    import joblib  # before a session: it keeps `open` and `os.replace` by names of its own


@pytest.fixture
def on(tmp_path):
    """`on(script)`: what it returns on 2 ranks, run in tmp_path."""

    def run(script, nproc=2, **more):
        return on_ranks(script, nproc, Files, Folders, Temporary, folder=tmp_path, **more)

    return run


@needs_pandas
def test_what_adds_to_a_file_keeps_what_was_there(on, tmp_path):
    (tmp_path / "log.csv").write_text("a\n0\n")
    Image.new("RGB", (4, 4)).save(tmp_path / "pages.pdf")

    def script(run):
        import pandas as pd

        rank = run.world.rank
        seen = []
        for step in (1, 2):
            pd.DataFrame({"a": [step + rank]}).to_csv(
                "log.csv", mode="a", header=False, index=False
            )
            seen.append(Path("log.csv").read_text())
        pd.DataFrame({"a": [1]}).to_json("log.jsonl", orient="records", lines=True, mode="a")
        pd.DataFrame({"a": [2]}).to_json("log.jsonl", orient="records", lines=True, mode="a")
        Image.new("RGB", (4, 4)).save("pages.pdf", append=True)
        pages = Path("pages.pdf").read_bytes().count(b"/Type /Page\n")
        return seen, Path("log.jsonl").read_text(), pages

    # PDFs grow: the first is in it twice
    told = (["a\n0\n1\n", "a\n0\n1\n2\n"], '{"a":1}\n{"a":2}\n', 3)
    assert on(script, 3) == [told] * 3
    assert (tmp_path / "log.csv").read_text() == "a\n0\n1\n2\n"


@needs_joblib
def test_joblib_and_its_workers(on, tmp_path):
    def script(run):
        import sklearn.linear_model

        rank = run.world.rank
        memory = joblib.Memory("cache", verbose=0)
        square = memory.cache(np.square)
        twice = [square(np.arange(3)).tolist() for _ in range(2)]
        big = np.full(200_000, 1.5)  # more than is sent to workers by pipe
        with joblib.parallel_config("loky", n_jobs=2):
            sums = joblib.Parallel()(joblib.delayed(np.sum)(big) for _ in range(2))
        model = sklearn.linear_model.LinearRegression(n_jobs=2).fit(np.eye(3), np.arange(3))
        joblib.dump((rank, model.coef_.shape), "model.joblib")
        return twice, [float(s) for s in sums], joblib.load("model.joblib")

    assert on(script) == [([[0, 1, 4]] * 2, [300_000.0] * 2, (0, (3,)))] * 2
    assert "model.joblib" in os.listdir(tmp_path)


@pytest.mark.skipif(not all(map(find_spec, NEEDED)), reason=f"needs {', '.join(NEEDED)}")
def test_a_script_that_logs_by_what_packages_offer(warm, tmp_path):
    script = str(Path(__file__).with_name("uses_libraries.py"))
    alone = warm.run("python", script, folder=tmp_path / "alone", timeout=240)
    command = ["autoddp", "run", "-q", "--nproc", "2", "--log-dir", str(tmp_path / "logs"), script]
    ranks = warm.run(*command, folder=tmp_path / "ranks", timeout=240)
    assert (alone.code, ranks.code) == (0, 0), alone.err + ranks.err
    assert ranks.out == alone.out
    assert (tmp_path / "logs" / "rank1.log").read_text() == alone.out
    for name in ("batch.png", "log.csv"):
        assert (tmp_path / "ranks/run" / name).read_bytes() == (
            tmp_path / "alone/run" / name
        ).read_bytes()
