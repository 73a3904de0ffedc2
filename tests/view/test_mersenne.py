"""The state of numpy's generator as it lies in memory: always what numpy says."""

import numpy as np
import pytest

from autoddp.view.generators import Generators
from autoddp.view.mersenne import _place, numpy_state, same_numpy


@pytest.fixture(autouse=True)
def the_state_of_before():
    before = np.random.get_state()
    yield
    np.random.set_state(before)


def test_it_is_read_from_memory_and_what_numpy_says():
    assert _place(np) is not None
    np.random.seed(3)
    draws = (
        np.random.rand,
        np.random.randn,
        np.random.randn,
        lambda: np.random.seed(4),
        np.random.randn,
    )
    for draw in draws * 300:  # past the last word
        before = numpy_state(np)
        draw()
        now, said = numpy_state(np), np.random.get_state()
        assert now[0] == said[0]
        assert (now[1] == said[1]).all()
        assert now[2:] == said[2:]
        assert not same_numpy(before, now)


def test_it_can_be_put_back():
    np.random.randn()
    before = Generators()
    want = np.random.randn(3)
    assert not before.same(Generators())
    before.put_back()
    assert before.same(Generators())
    assert (np.random.randn(3) == want).all()


def test_another_kind_is_asked_for_its_state():
    own = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        before = Generators()
        want = np.random.rand()
        assert not before.same(Generators())
        before.put_back()
        assert before.same(Generators())
        assert np.random.rand() == want
    finally:
        np.random.set_bit_generator(own)
