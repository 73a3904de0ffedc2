"""Whatever a user or a launcher hands over is understood, or refused in one line that names it."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autoddp import cli, launch
from autoddp.decorator import choose, count
from autoddp.options import Options
from autoddp.process import features
from autoddp.training.loading.sampling import RowSampler
from tests.support.fuzz import NUMBERS, NUMERALS, WORDS, examples, refusal

STRAY = [
    *("run", "verify", "patches", "env", "--nproc", "-n", "-nq", "--view", "--help=", "--", "-"),
    *("-m", "--disable", "--steps", "--json", "--no-strict", "--strict=1", "--nproc=", "=", "--="),
    "-vqm-",
]


@examples(80)
@given(
    st.lists(
        st.sampled_from(STRAY) | NUMERALS,
        max_size=6,
    )
)
@example([])
@example(["run", "--nproc"])
@example(["run", "--x\ny\r\u2028", "s"])
@example(["foo\nbar"])
@example(["patches", "a\nb"])
@example(["env", "\n"])
def test_any_words_are_an_act_or_refused(arguments):
    act, said = refusal(lambda: cli.parse(arguments))
    assert said is not None or act == 0 or callable(act)


def options_of(values):
    return st.fixed_dictionaries(
        {}, optional=dict.fromkeys((f.name for f in fields(Options)), values)
    )


SCALAR = (
    st.none()
    | st.booleans()
    | NUMBERS
    | st.floats()
    | WORDS
    | st.sampled_from(["auto", "local", "whole"])
)
LISTED = st.lists(SCALAR, max_size=3)
ANYTHING = st.one_of(SCALAR, LISTED, st.dictionaries(WORDS, SCALAR | LISTED, max_size=3))


@examples(80)
@given(options_of(ANYTHING), NUMERALS)
def test_the_decorators_options_are_understood_or_refused(given, override):
    _, said = refusal(lambda: choose(given))
    assert said is None or any(name in said.replace("-", "_") for name in given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTODDP_NPROC", override)
        ranks, said = refusal(lambda: count(choose({})))
    assert 1 <= ranks <= 4096 if said is None else "--nproc" in said


@examples(60)
@given(st.lists(st.integers(0, 200), max_size=6), st.integers(1, 64))
def test_ranks_fetch_each_row_once_in_order(lengths, ranks):
    batches = [list(range(100 * at, 100 * at + length)) for at, length in enumerate(lengths)]
    samplers = [RowSampler(batches, ranks, rank) for rank in range(ranks)]
    for batch, parts in zip(batches, zip(*samplers, strict=True), strict=True):
        if len(batch) < ranks:
            assert all(part == batch for part in parts)
            continue
        assert [index for part in parts for index in part] == batch
        sizes = [len(part) for part in parts]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] - sizes[-1] <= 1
    for sampler in samplers:
        assert [None if s is None else sum(s) for s, *_ in sampler.sizes] == [
            n if n >= ranks else None for n in lengths
        ]


@examples(100)
@given(st.lists(WORDS | st.sampled_from(["[", "**", "?", "\\", "files", "modules", "modules:a"])))
def test_any_name_of_a_feature_can_be_asked_for(names):
    known = {feature.name for feature in features.FEATURES}
    _, said = refusal(lambda: launch.check_disabled(SimpleNamespace(disable=tuple(names))))
    assert said is None if known.issuperset(names) else said.startswith("--disable is ")
