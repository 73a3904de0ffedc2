import itertools
import time
from datetime import timedelta

import pytest

from autoddp.comm import group as groups
from tests.effects.outward import raised
from tests.support.ranks import run_ranks


def test_the_result_of_the_rank_that_acts_is_that_of_all():
    assert (
        run_ranks(lambda g: [g.call("a", lambda: g.rank, by=n) for n in range(3)], 3)
        == [[0, 1, 2]] * 3
    )


@pytest.mark.parametrize(
    "error",
    [ValueError("no"), FileNotFoundError(2, "none", "x"), KeyboardInterrupt(), SystemExit(3)],
)
@pytest.mark.parametrize("all_here", [False, True])
def test_what_an_effect_raises_is_raised_on_all_ranks_and_nobody_waits(error, all_here):
    def rank(group):
        def act():
            raise error

        return raised(lambda: group.call("a", act, all_here=all_here)), group.call("b", lambda: 1)

    assert run_ranks(rank, 2) == [((type(error).__name__, str(error)), 1)] * 2


def test_ranks_meet_before_a_change():
    def rank(group):
        time.sleep(0.2 * group.rank)
        began = time.monotonic()
        at = group.call("a", time.monotonic, all_here=True)
        return began, at

    seen = run_ranks(rank, 3)
    assert all(began <= at for began, at in seen)


def test_without_meeting_rank_0_does_not_wait():
    def rank(group):
        time.sleep(0.3 * group.rank)
        began = time.monotonic()
        group.call("a", lambda: 1)
        return time.monotonic() - began

    assert run_ranks(rank, 2)[0] < 0.2


@pytest.mark.parametrize("all_here", list(itertools.product([False, True], repeat=2)))
def test_ranks_at_different_places_are_told_which(all_here):
    def rank(group):
        site = "there" if group.rank else "here"
        mine = all_here[bool(group.rank)]
        return raised(lambda: group.call(site, lambda: 1, all_here=mine))

    zero, one, *_ = run_ranks(rank, 3)
    assert one[0] == "Disagreement"
    said = "rank 1 is in «there» where rank 0 is in «here»; a decision in the script differs"
    assert one[1].startswith(said)
    if all_here[0]:  # it waits for them, and learns that they are elsewhere
        assert zero[1].startswith(said)


@pytest.mark.parametrize("by", [0, 1])
@pytest.mark.parametrize("size", [0, 3_000_000])
def test_bytes_are_handed_on(size, by):
    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]

    def rank(group):
        return group.call("a", lambda: body, by=by) == body, group.call("b", lambda: 2)

    assert run_ranks(rank, 3) == [(True, 2)] * 3


def test_an_act_may_take_longer_than_what_the_backend_waits(monkeypatch):
    """A download of hours, a prompt that nobody answers over night."""
    monkeypatch.setattr(groups, "TIMEOUT", timedelta(seconds=3))

    def rank(group):
        return group.call("a", lambda: time.sleep(4) or "there")

    assert run_ranks(rank, 3) == ["there"] * 3
