"""The states of shared generators: a draw shows, and they can be put back."""

import numpy as np
import pytest

from autoddp.training.loading.generators import Generators


@pytest.fixture(autouse=True)
def the_state_of_before():
    before = np.random.get_state()
    yield
    np.random.set_state(before)


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
