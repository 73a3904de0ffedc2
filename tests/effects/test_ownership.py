"""Whose call one is, by the files of the frames that make it."""

import sys
import sysconfig
import types

import pytest

from autoddp.effects import ownership

STDLIB, PLATSTDLIB = (sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib"))


def asks(filename):
    """Whether a call by a function of this file is one of Python's own."""
    names = {"ask": ownership.by_interpreter}
    exec(compile("def call():\n    return ask()", filename, "exec"), names)
    return names["call"]()


@pytest.mark.parametrize(
    "filename",
    [
        # a virtual environment's packages lie below its own folder of the standard library
        f"{PLATSTDLIB}/site-packages/tensorboard/compat/gfile.py",
        f"{STDLIB}/site-packages/matplotlib/figure.py",
        "/usr/lib/python3/dist-packages/yaml/__init__.py",
        "/home/me/train.py",
    ],
)
def test_a_packages_and_the_scripts_calls_are_agreed_on(filename):
    assert not asks(filename)


@pytest.mark.parametrize(
    "filename",
    [
        f"{STDLIB}/linecache.py",
        f"{STDLIB}/importlib/metadata/__init__.py",
        "<frozen importlib._bootstrap_external>",
        f"{PLATSTDLIB}/site-packages/torch/utils/data/dataloader.py",
    ],
)
def test_what_python_and_pools_ask_for_themselves_is_not(filename):
    assert asks(filename)


@pytest.mark.parametrize(
    ("filename", "tracks"),
    [
        ("/home/me/wandb/train.py", False),
        (f"{PLATSTDLIB}/site-packages/wandb/sdk/wandb_run.py", True),
    ],
)
def test_a_tracker_is_a_package_and_no_folder_of_that_name(filename, tracks, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", types.ModuleType("wandb"))
    names = {"ask": ownership.by_tracker}
    exec(compile("def call():\n    return ask()", filename, "exec"), names)
    assert names["call"]() is tracks
