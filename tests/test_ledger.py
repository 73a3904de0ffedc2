import threading
import time

import pytest
import torch

from autoddp.comm.outcome import Outcome
from tests.features.outward import raised
from tests.ranks import run_ranks


def test_an_effect_has_rank_0s_result_on_all_ranks():
    def rank(group):
        return [group.effect(f"a{n}", lambda n=n: [group.rank, n]) for n in range(5)]

    assert run_ranks(rank, 3) == [[[0, n] for n in range(5)]] * 3


def test_an_effect_may_be_another_ranks():
    assert (
        run_ranks(lambda g: [g.effect("a", lambda: g.rank, by=n) for n in range(3)], 3)
        == [[0, 1, 2]] * 3
    )


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
        site = "there" if group.rank else "here"
        return raised(lambda: group.effect(site, lambda: 1, meet=meets[bool(group.rank)]))

    zero, one, *_ = run_ranks(rank, 3)
    assert one[0] == "Disagreement"
    assert one[1].startswith("rank 1 is at «there» where rank 0 is at «here» (side effect 0)")
    if meets[0]:  # it waits for them, and learns that they are elsewhere
        assert zero[1].startswith("rank 0 is at «here» where rank 1 is at «there» (side effect 0)")


def test_another_rank_at_a_different_place_is_told_which():
    def rank(group):
        return raised(lambda: group.effect(f"at {group.rank}", lambda: 1, by=1))

    assert run_ranks(rank, 2)[0][1].startswith("rank 0 is at «at 0» where rank 1 is at «at 1»")


@pytest.mark.parametrize("size", [0, 1, 3_000_000])
def test_bytes_are_handed_on(size):
    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]

    def rank(group):
        return group.hand("a", lambda: body) == body, group.effect("b", lambda: 2)

    assert run_ranks(rank, 3) == [(True, 2)] * 3


def test_bytes_that_cannot_be_made_are_an_error_on_all_ranks():
    def rank(group):
        def act():
            raise ValueError("no")

        return raised(lambda: group.hand("a", act)), group.effect("b", lambda: 2)

    assert run_ranks(rank, 2) == [(("ValueError", "no"), 2)] * 2


def test_what_is_published_is_found_whenever_it_is_asked_for():
    def rank(group):
        seen = []
        if group.rank == 0:
            for key in "abc":
                group.publish(key, Outcome.of(lambda key=key: key * 2))
                seen.append(group.effect(key, lambda key=key: key))
            group.publish("d", Outcome(error=ValueError("no")))
            return [*seen, *(key * 2 for key in "cab"), ("ValueError", "no")]
        last = group.published("c")
        seen += [group.effect(key, lambda: "?") for key in "abc"]
        return [
            *seen,
            last,
            group.published("a"),
            group.published("b"),
            raised(lambda: group.published("d")),
        ]

    assert len({repr(seen) for seen in run_ranks(rank, 3)}) == 1


def test_threads_of_rank_0_publish_while_effects_go_on():
    """Files are closed by whichever thread drops them last."""

    def rank(group):
        keys = [f"{thread}/{n}" for thread in range(4) for n in range(50)]
        if group.rank == 0:
            threads = [
                threading.Thread(
                    target=lambda mine: [group.publish(key, Outcome(value=key)) for key in mine],
                    args=(keys[at : at + 50],),
                )
                for at in range(0, 200, 50)
            ]
            for thread in threads:
                thread.start()
        effects = [group.effect(f"a{n}", lambda n=n: n) for n in range(200)]
        if group.rank == 0:
            for thread in threads:
                thread.join()
            return effects, keys
        return effects, [group.published(key) for key in keys]

    zero, one = run_ranks(rank, 2)
    assert zero == one


def test_the_store_does_not_grow():
    def rank(group):
        before = group.store.num_keys()
        for n in range(60):
            group.effect("a", lambda n=n: n, meet=n % 5 == 0)
            group.effect("b", lambda: "x", by=1)
            group.publish(str(n), Outcome(value=1)) if group.rank == 0 else group.published(str(n))
        group.hand("b", lambda: b"x")
        group.barrier()
        return group.store.num_keys() - before

    assert max(run_ranks(rank, 3)) <= 2  # of an effect that some rank has not read yet


def test_rank_0_runs_ahead_until_buffers_are_full():
    """What a slow rank waits in meanwhile, rank 0 has started."""

    def rank(group):
        work = group.start_all_reduce(torch.ones(1))
        if group.rank:
            time.sleep(0.3)
            work.wait()
        began = time.monotonic()
        seen = sum(len(group.effect("a", lambda n=n: "x" * n)) for n in range(2000))
        took = time.monotonic() - began
        work.wait()
        return seen, took

    zero, one = run_ranks(rank, 2)
    assert zero[0] == one[0]
    assert zero[1] > 0.2, "it was held back"
