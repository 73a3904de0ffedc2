"""Errors, modes of `open`, names, threads, children: what a library may do besides the usual."""

from __future__ import annotations

import pytest

from tests.features import library_modes
from tests.features.test_overlay import compared, install


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    yield from install(library_modes, tmp_path_factory.mktemp("lib"))


@pytest.mark.parametrize("late", ["nobody", "rank 0", "rank 1", "with answers", "with meetings"])
@pytest.mark.parametrize("name", [pattern.__name__ for pattern in library_modes.PATTERNS])
def test_a_library_finds_one_processs_world_whatever_it_does(installed, tmp_path, name, late):
    compared(getattr(installed, name), tmp_path, late, 2)
