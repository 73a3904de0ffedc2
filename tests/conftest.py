"""Every test starts from a plain environment, and leaves nothing behind in this process."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time

import pytest
import wrapt
from hypothesis import settings

import autoddp
import autoddp.decorator
from autoddp.comm.world import ADDED
from autoddp.options import ROWS, variables
from autoddp.patching import ABSENT, find
from tests.support.warm import shared

OURS = (
    *("AUTODDP_OPTIONS", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
    *map(variables.variable, ROWS),
)
# set by pytest for each test, and by torch for good when it imports its compiler
THEIRS = ("PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR")
PACKAGE = os.path.dirname(autoddp.__file__)
PATIENCE = 3  # seconds in which a thread that was told to end may end

# The suite tries the same examples each time, HYPOTHESIS_PROFILE=nightly many others.
settings.register_profile("suite", deadline=None, database=None, derandomize=True)
settings.register_profile("nightly", deadline=None, database=None, max_examples=10_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


def pytest_addoption(parser):
    parser.addoption("--turn", type=int, help="half of the tests: others for the next number")


@pytest.hookimpl(trylast=True)  # after -m
def pytest_collection_modifyitems(config, items):
    """Files take turns, as their tests share what is run once; scripts share nothing."""
    turn = config.getoption("--turn")
    if turn is None:
        return
    units = [x.nodeid if x.path.name == "test_end_to_end.py" else str(x.path) for x in items]
    turns = {unit: (n + turn) % 2 for n, unit in enumerate(sorted({*units}))}
    pairs = list(zip(items, units, strict=True))
    config.hook.pytest_deselected(items=[item for item, unit in pairs if turns[unit]])
    items[:] = [item for item, unit in pairs if not turns[unit]]


def pytest_configure():
    """A shell starts background jobs deaf to Ctrl-C, and all that they start: tests send it."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            own = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, own)


@pytest.fixture(scope="session")
def warm():
    """One parent for all commands: see `Warm`."""
    return shared()


@pytest.fixture(autouse=True)
def clean_environ(monkeypatch):
    """No launcher's variables, whoever started the tests; one thread for a process, and rules."""
    for name in (*ADDED, *OURS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("AUTODDP_PLACEMENT", "sharded")  # else small jobs would leave the rules


@pytest.fixture(autouse=True)
def no_leaks(clean_environ):
    """Environment, threads, process group and patched slots are after a test as before it."""
    environ, threads, slots = _environ(), _threads(), _slots()
    yield
    assert _environ() == environ, "the test changed the environment"
    deadline = time.monotonic() + PATIENCE
    while _threads() - threads and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _threads() - threads, "the test left threads"
    dist = sys.modules.get("torch.distributed")
    assert dist is None or not dist.is_initialized(), "the test left a process group"
    now = _slots()
    left = [name for name in now if slots.get(name) is not now[name] and _is_ours(now[name])]
    assert not left, f"the test left {left} patched"


def _environ():
    return {name: value for name, value in os.environ.items() if name not in THEIRS}


def _threads():
    return {thread for thread in threading.enumerate() if not thread.daemon}


def _is_ours(slot):
    """Torch's compiler, once imported, replaces some functions, too."""
    file = getattr(getattr(slot, "__code__", None), "co_filename", "")
    return isinstance(slot, wrapt.FunctionWrapper) or file.startswith(PACKAGE)


def _slots():
    """What stands at each declared target whose module is imported."""
    features = getattr(sys.modules.get("autoddp.process.features"), "FEATURES", ())
    found = {}
    for feature in features:
        for patch in feature.patches():
            for target in patch.targets:
                name = target.partition(":")[0]
                if name in sys.modules:
                    module = importlib.import_module(name)
                    owner, attribute, _ = find(target, module, optional=True)
                    if owner is not ABSENT:
                        found[target] = vars(owner).get(attribute, ABSENT)
    return found
