"""The comparison of runs finds differences; otherwise all tests that use it would pass."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from autoddp.tools.verify.outputs import compare_file
from tests.support.same import same_files, same_run, same_text, same_value
from tests.support.warm import Run


@pytest.mark.parametrize(
    ("want", "got", "rtol"),
    [
        ("loss 0.5", "loss 0.5000001", 1e-9),
        ("loss 0.5", "loss 0.5\nloss 0.5", 1e-9),
        ("step 10 of 20", "step 11 of 20", 0.5),
        ("loss 0.5", "loss nan", 1e-9),
        ("loss 0.5", "loss 0.50", 0),
        ("(0.3+0.2977632j)", "(0.3-0.2977632j)", 1e-9),
        ("(0.3+0.2977632j)", "(0.3+0.2977639j)", 1e-9),
        ("(nan+0.5j)", "(nan+0.25j)", 1e-9),
        ("(0.5+infj)", "(0.5+0.5j)", 1e-9),
        ("(3+4j)", "(3+5j)", 0.5),
    ],
    ids=str,
)
def test_text_that_differs(want, got, rtol):
    assert same_text(want, want, 0, "stdout") == 0
    with pytest.raises(AssertionError, match="stdout"):
        same_text(want, got, rtol, "stdout")


def test_text_that_agrees_within_rounding():
    assert 0 < same_text("x 0.5 y 1e-17", "x 0.5000000000000001 y 3e-17", 1e-9, "stdout") < 1e-12
    whole = "(0.2977632092285337+1e-17j) 0.5j -2.-0.2978j"
    assert 0 < same_text(whole, whole.replace("337+1", "338+3"), 1e-9, "stdout") < 1e-12
    assert 0 < same_text("0.25+nanj", "0.2500000000000001+nanj", 1e-9, "stdout") < 1e-12
    assert same_text("runs/20250101-120000", "runs/20250101-120001", 0, "stdout") == 0


W = torch.arange(6.0).view(2, 3)
STATE = {"w": W, "step": 3, "lr": 0.1, "names": ["a", "b"], "best": None, "betas": (0.9, 0.99)}


@pytest.mark.parametrize(
    "change",
    [
        {"w": W + 1e-3},
        {"w": W.double()},
        {"w": W.reshape(3, 2)},
        {"w": torch.full((2, 3), float("nan"))},
        {"step": 4},
        {"names": ["a", "c"]},
        {"new": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_checkpoints_that_differ(change):
    assert same_value(STATE, dict(STATE), 0, "ckpt.pt") == 0
    with pytest.raises(AssertionError, match=r"ckpt\.pt"):
        same_value(STATE, STATE | change, 1e-9, "ckpt.pt")


@dataclass
class Kept:
    """A value whose `==` fails on a tensor; `other` makes a reference cycle."""

    value: object
    other: object = None


def stepped(lr=0.1):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight], lr=lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    weight.square().sum().backward()
    optimizer.step()
    scheduler.step()
    return scheduler


def circle(value):
    made = Kept(value)
    made.other = [made]
    return made


OBJECTS = {
    "scheduler": stepped,
    "dataclass": lambda value=0.5: Kept(torch.full((3,), value)),
    "circle": lambda value=0.5: circle(value),
    "generator": lambda value=0.5: np.random.default_rng(int(10 * value)),
    "set": lambda value=0.5: {value},
}


TENSORS = {
    "sparse": lambda value=0.5: torch.diag(torch.full((3,), value)).to_sparse(),
    "conjugate": lambda value=0.5: torch.tensor([1 + 1j * value]).conj(),
    "parameter": lambda value=0.5: torch.nn.Parameter(torch.tensor([value])),
    "bfloat16": lambda value=0.5: torch.full((2,), value).bfloat16(),
    "whole": lambda value=0.5: torch.full((4,), int(10 * value), dtype=torch.uint8),
}
KINDS = OBJECTS | TENSORS
# what changes as a whole, or is too coarse
WHOLE = {"generator", "set", "bfloat16", "whole"}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch says that some kinds are new, or old
def test_values_of_every_kind_are_compared_by_content(name):
    make = KINDS[name]
    made = [make(), make()] if name in TENSORS else pickle.loads(pickle.dumps([make(), make()]))
    want, got = ({"it": value} for value in made)
    assert same_value(want, got, 0, "ckpt.pt") == 0
    with pytest.raises(AssertionError, match=r"ckpt\.pt\['it'\]"):
        same_value(want, {"it": make(2.0)}, 1e-3, "ckpt.pt")
    if name not in WHOLE:
        assert 0 < same_value(make(0.5), make(0.5 + 1e-6), 1e-5, "ckpt.pt") < 1e-5


def write(folder, loss=0.5):
    (folder / "runs").mkdir(parents=True)
    torch.save({"loss": loss}, folder / "runs" / "net.pt")
    np.save(folder / "scores.npy", np.array([loss, 1.0]))
    np.savez(folder / "kept.npz", a=np.array([loss]))
    (folder / "log.csv").write_text(f"epoch,loss\n0,{loss}\n")
    return folder


def test_values_of_other_types_differ_at_any_tolerance(tmp_path):
    a, b = write(tmp_path / "a"), write(tmp_path / "b", 0.7)
    assert same_files(a, b, 1e9) > 0.1
    np.save(b / "scores.npy", np.array([0.5, 1.0, 2.0]))
    with pytest.raises(AssertionError, match=r"scores\.npy"):
        same_files(a, b, 1e9)


def test_names_links_and_ends_of_lines_are_compared(tmp_path):
    a, b = write(tmp_path / "a"), write(tmp_path / "b")
    for folder in (a, b):
        (folder / "latest").symlink_to("runs")
        (folder / "gone").symlink_to("nowhere")
    assert same_files(a, b, 0) == 0
    (b / "log.csv").write_text((a / "log.csv").read_text().rstrip())
    assert same_files(a, b, 1e-9) == 0
    with pytest.raises(AssertionError, match=r"log\.csv"):
        same_files(a, b, 0)
    (b / "gone").unlink()
    for want, got in ((a, b), (b, a)):
        with pytest.raises(AssertionError, match="gone"):
            same_files(want, got, 1e-9)


@pytest.mark.parametrize("name", ["runs/net.pt", "scores.npy", "kept.npz", "log.csv"])
def test_files_that_differ(name, tmp_path):
    a, b, c = (write(tmp_path / name, loss) for name, loss in (("a", 0.5), ("b", 0.5), ("c", 0.6)))
    assert same_files(a, b, 0) == 0
    (c / name).rename(b / name)
    with pytest.raises(AssertionError, match=name.rpartition("/")[2]):
        same_files(a, b, 1e-9)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"code": 1}, "exit code 1"),
        ({"err": "Traceback (most recent call last):\n"}, "on stderr"),
        ({"out": "loss 0.6\n"}, "stdout line 1"),
        ({"left": ("77 (python)",)}, "outlived"),
    ],
    ids=["code", "traceback", "printed", "process"],
)
def test_runs_that_differ(change, says, tmp_path):
    plain = {"code": 0, "out": "loss 0.5\n", "err": "", "folder": tmp_path}
    want = Run(**plain)
    assert same_run(want, Run(**plain | {"err": "[autoddp] 2 ranks\n"}), 0) == 0
    with pytest.raises(AssertionError, match=says):
        same_run(want, Run(**plain | change), 1e-9)


def test_verify_takes_a_weight_without_a_gradient_for_rounding(tmp_path):
    """A bias in front of BatchNorm is what Adam makes of rounding errors."""
    paths = tmp_path / "one.pt", tmp_path / "ranks.pt"
    for path, noise in zip(paths, (3e-11, -1e-11), strict=True):
        torch.save({"weight": torch.full((20, 20), 2.0), "bias": torch.full((3,), noise)}, path)
    (found,) = compare_file("one.pt", paths, 0, True, [])
    assert found.place == "one.pt['bias'], element 0"
    assert 0 < found.size < 1e-8
