from hypothesis import given, settings
from hypothesis import strategies as st

from autoddp.training.loading.sampling import Resumed, RowSampler


def sampler(batches, ranks, rank, before_fetch=lambda: None):
    made = RowSampler(batches, ranks, rank)
    made.before_fetch = before_fetch
    return made


@settings(max_examples=60, deadline=None, database=None)
@given(st.lists(st.lists(st.integers(0, 99), max_size=9), max_size=6), st.integers(1, 4))
def test_the_ranks_rows_are_the_batch_in_its_order(batches, ranks):
    parts = [list(sampler(batches, ranks, rank)) for rank in range(ranks)]
    for number, batch in enumerate(batches):
        mine = [part[number] for part in parts]
        if len(batch) < ranks:
            assert mine == [batch] * ranks
        else:
            assert [n for rows in mine for n in rows] == batch
            assert max(map(len, mine)) - min(map(len, mine)) <= 1


def test_sizes_are_noted_in_order_none_for_a_whole_batch():
    ours = sampler([[1, 2, 3, 4, 5], [6], [7, 8]], 2, 1)
    assert list(ours) == [[4, 5], [6], [8]]
    assert list(ours.sizes) == [(3, 2), None, (1, 1)]


def test_one_that_goes_on_gives_all_batches_and_draws_none_of_them_twice():
    drawn = []

    def batches():
        for number in range(5):
            drawn.append(number)
            yield [number] * 3

    class Once:
        def __iter__(self):
            return batches()

        def __len__(self):
            return 5

    ours = sampler(Once(), 3, 1)
    ours.seen, ours.whole = [], 1
    first = iter(ours)
    assert [next(first), next(first)] == [[0, 0, 0], [1]]
    resumed = Resumed(ours)
    assert len(resumed) == 5
    iter(resumed)  # as torch does, which takes nothing of the first
    assert [batch[0] for batch in resumed] == drawn == [0, 1, 2, 3, 4]
    assert [len(batch) for batch in resumed] == [3] * 5  # the next pass
