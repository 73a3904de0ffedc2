import time

import pytest

from autoddp.outside.ledger import KEPT, PART
from tests.features.outward import raised
from tests.ranks import run_ranks


def test_an_effect_has_rank_0s_result_on_all_ranks():
    def rank(group):
        return [group.effect(f"a{n}", lambda n=n: [group.rank, n]) for n in range(5)]

    assert run_ranks(rank, 3) == [[[0, n] for n in range(5)]] * 3


def test_an_effect_may_be_another_ranks():
    assert run_ranks(lambda g: [g.effect("a", lambda: g.rank, by=n) for n in range(3)], 3) == [[0, 1, 2]] * 3


@pytest.mark.parametrize(
    "error",
    [ValueError("no"), FileNotFoundError(2, "none", "x"), KeyboardInterrupt(), SystemExit(3)],
)
@pytest.mark.parametrize("meet", [False, True])
def test_what_an_effect_raises_is_raised_on_all_ranks_and_nobody_waits(error, meet):
    def rank(group):
        def act():
            raise error

        return raised(lambda: group.effect("a", act, meet=meet)), group.effect("b", lambda: 1)

    assert run_ranks(rank, 2) == [((type(error).__name__, str(error)), 1)] * 2


def test_ranks_meet_before_a_change():
    def rank(group):
        time.sleep(0.2 * group.rank)
        began = time.monotonic()
        at = group.effect("a", time.monotonic, meet=True)
        return began, at

    seen = run_ranks(rank, 3)
    assert all(began <= at for began, at in seen)


def test_without_meeting_rank_0_does_not_wait():
    def rank(group):
        time.sleep(0.3 * group.rank)
        began = time.monotonic()
        group.effect("a", lambda: 1)
        return time.monotonic() - began

    assert run_ranks(rank, 2)[0] < 0.2


@pytest.mark.parametrize("meets", [(False, False), (False, True), (True, False), (True, True)])
def test_ranks_at_different_places_are_told_which(meets):
    def rank(group):
        if group.rank == 0:
            if meets[0]:  # it would wait for an arrival that does not come: the others tell
                group.store.set("e0", '["here", null]')
                return None
            return group.effect("here", lambda: 1)
        return raised(lambda: group.effect("there", lambda: 1, meet=meets[1]))

    kind, text = run_ranks(rank, 2)[1]
    assert kind == "Disagreement"
    assert text.startswith("rank 1 is at «there» where rank 0 is at «here» (side effect 0)")


@pytest.mark.parametrize("size", [0, 1, PART, 2 * PART + 1])
def test_bytes_are_handed_on(size):
    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]
    assert run_ranks(lambda g: g.hand("a", lambda: body) == body, 2) == [True, True]


def test_the_store_does_not_grow():
    def rank(group):
        for n in range(6 * KEPT):
            group.effect("a", lambda n=n: n, meet=n % 50 == 0)
        group.hand("b", lambda: b"x")
        group.barrier()
        return group.store.num_keys()

    assert max(run_ranks(rank, 2)) < 5 * KEPT
