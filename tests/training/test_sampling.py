from hypothesis import given, settings
from hypothesis import strategies as st

from autoddp.training.loading.sampling import RowSampler


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
