"""Random programs on sharded parameters say what one process says."""

from __future__ import annotations

import pytest

from tests.training.parameter_programs import check

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("nproc", "first", "count"), [(2, 0, 100), (3, 1000, 50)])
def test_programs_on_parameters_equal_those_of_one_process(nproc, first, count):
    found = check(range(first, first + count), nproc)
    assert not found, f"`python -m tests.training.parameter_programs 1 --seed N`: {found}"
