"""When a job hangs, by what its ranks say of themselves."""

from __future__ import annotations

import pytest

from autoddp.comm.position import ACTING, BACKWARD, WAITING
from autoddp.process.watching.judge import RankStatus, judge

T = 30.0


def at(rank, kind="", for_=0.0, idle=0.0, words="", heard=0.0):
    return RankStatus(rank, kind, words, for_, idle, "train.py:1", heard=heard)


@pytest.mark.parametrize(
    ("ranks", "missing"),
    [
        ([at(0), at(1)], None),
        ([at(0, idle=99), at(1, idle=99)], None),  # both sleep: nobody waits
        ([at(0, WAITING, 29, 29), at(1, idle=29)], None),
        ([at(0, WAITING, 31, 31), at(1, idle=31)], [1]),
        ([at(0, WAITING, 31, 31), at(1, idle=5)], None),
        ([at(0, WAITING, 31, 31), at(1, idle=99), at(2, idle=1)], None),
        ([at(0, WAITING, 31, 31), at(1, WAITING, 31, 31, "3 x")], []),
        ([at(0, WAITING, 31, 31), at(1, WAITING, 5, 5, "3 x")], None),
        ([at(0, ACTING, 99, 99, "3 x"), at(1, WAITING, 99, 99, "3 x")], None),
        ([at(0, ACTING, 99, 99, "3 x"), at(1, WAITING, 99, 99, "2 y")], [0]),
        (
            [
                at(r, (ACTING, WAITING)[r % 2], 99, 99, f"batch of rank {r // 2 * 2}")
                for r in range(4)
            ],
            None,
        ),
        ([at(0, ACTING, 99, 99, "3 input"), at(1, WAITING, 99, 99)], [0]),
        ([at(0, BACKWARD, 99, 0), at(1, BACKWARD, 99, 0)], None),  # it computes
        ([at(0, BACKWARD, 99, 40), at(1, BACKWARD, 99, 1)], None),
        ([at(0, BACKWARD, 99, 40), at(1, BACKWARD, 99, 40)], []),
        ([at(0, WAITING, 31, 31), at(1, heard=31)], [1]),
        ([at(0), at(1, heard=31)], None),  # nobody waits for it
    ],
)
def test_a_job_hangs_if_ranks_wait_and_none_gets_anywhere(ranks, missing):
    found = judge(ranks, T)
    assert (found and [r.rank for r in found]) == missing
