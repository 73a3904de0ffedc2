"""The examples, run short: what 2 ranks print and write is what `python` prints and writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import archives
from tests.support.same import same_files, same_terminal

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent.parent / "examples" / "single_gpu"

# float32 keeps 7 digits, and every step carries its rounding on, BatchNorm and Adam more than
# others: after the few steps run here the losses agree to two digits or more
PRINTED = 2e-2
# and Adam moves a weight whose gradient is next to nothing by whole steps, either way: of the files
# the names, the keys, the shapes and the dtypes are compared (values: scripts/, in float64)
ANY = float("inf")

ARGUMENTS = {
    "digits": ["--epochs", "2"],
    "scans": ["--epochs", "1"],
    "char_lm": ["--steps", "6"],
    "mnist": ["--epochs", "1", "--log-interval", "2", "--save-model"],
    "cifar10": ["--epochs", "1", "--print-every", "3"],
    "vae": ["--epochs", "2"],
    "dcgan": ["--epochs", "1"],
    "contrastive": ["--epochs", "2"],
}
# test_readme.py compares scans, its main job
RANKS = [(name, 2) for name in ARGUMENTS if name != "scans"] + [("digits", 3)]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("archives") / "www"
    archives.make(folder)
    with archives.serving(folder) as running:
        yield running


@pytest.fixture(scope="module")
def run(warm, server):
    """Run an example; gives what it left and which files it asked the server for, how often."""

    def example(name, folder, *launcher):
        server.requests.clear()
        command = [*launcher, str(FOLDER / f"{name}.py"), *ARGUMENTS[name]]
        done = warm.run(*command, folder=folder, timeout=240, mirror=server.url)
        server.requests.pop("sums.json")
        return done, dict(server.requests)

    return example


@pytest.fixture(scope="module")
def references(run, tmp_path_factory):
    known = {}

    def reference(name):
        if name not in known:
            known[name] = run(name, tmp_path_factory.mktemp(name) / "python", "python")
        return known[name]

    return reference


@pytest.mark.parametrize(("name", "nproc"), RANKS)
def test_ranks_give_what_one_process_gives(name, nproc, run, references, tmp_path):
    (want, asked), folder = references(name), tmp_path / "ranks"
    got, asked_by_ranks = run(name, folder, "autoddp", "run", "--nproc", str(nproc))
    same_terminal(want, got, PRINTED)
    same_files(want.folder, got.folder, ANY)
    assert asked_by_ranks == asked  # each archive is fetched once, whatever the number of ranks


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_example_by_itself(name, references):
    """Plain python: it works, says something, and leaves its weights and its curve."""
    want, asked = references(name)
    assert want.code == 0, want.err
    left = {path.name for path in want.folder.glob("runs/*/*")}
    assert "curve.png" in left
    assert {Path(name).suffix for name in left} & {".pt", ".pth"}
    assert bool(asked) == (name in {"mnist", "cifar10"})


def recipes(*starts: str) -> list[list[str]]:
    """The lines of the examples' README that start so."""
    text = (FOLDER.parent / "README.md").read_text()
    shell = "".join(re.findall(r"^```sh\n(.*?)^```$", text, flags=re.M | re.S)).splitlines()
    return [line.split() for line in shell if line.startswith(starts)]


NODES = [words for words in recipes("autoddp") if "--node-rank" in words]
LINES = [words for words in recipes("autoddp") if words not in NODES]
PLAIN = [words for words in LINES if len(words) == 5 and words[-1].removesuffix(".py") in ARGUMENTS]
TASKS = recipes("srun")


def taken_apart(words):
    """What stands before the script, and its name."""
    at = next(n for n, word in enumerate(words) if word.endswith(".py"))
    return words[:at], words[at].removesuffix(".py")


def test_each_recipe_is_run_by_a_test():
    assert len(recipes("")) == len(LINES) + len(NODES) + len(TASKS)
    assert (len(NODES), len(TASKS)) == (2, 1)
    assert all(words[:-1] == ["autoddp", "run", "--nproc", "2"] for words in PLAIN)  # run above


@pytest.mark.parametrize("words", [words for words in LINES if words not in PLAIN], ids=" ".join)
def test_a_recipe(words, run, references, tmp_path):
    """Run short; what is exact has been compared above."""
    launcher, name = taken_apart(words)
    got, asked = run(name, tmp_path / "ranks", *launcher)
    want, asked_alone = references(name)
    assert got.code == 0, got.err
    assert "2 ranks on 1 node" in got.err
    assert asked == asked_alone
    if "--view" not in words:
        same_terminal(want, got, PRINTED)


def test_the_recipe_for_two_nodes_is_that_of_the_pages():
    """Which test_readme.py runs, on two networks."""
    page = (FOLDER.parent.parent / "docs" / "machines.md").read_text()
    for words in NODES:
        line = " ".join(words)
        shown = line.replace("digits.py", "--master-port 29500 train.py")
        assert f"\n{shown}\n" in page


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_examples_are_plain_scripts(path):
    assert "autoddp" not in path.read_text()
    assert path.stem in ARGUMENTS
