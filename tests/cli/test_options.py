"""Options: what they take."""

from __future__ import annotations

import pytest

from autoddp.errors import BadInput
from autoddp.options import ROWS, Options

CHOICES = {name: row.words for name, row in ROWS.items() if row.words}


@pytest.mark.parametrize("name", CHOICES)
def test_words_are_checked(name):
    for word in CHOICES[name]:
        assert getattr(Options(**{name: word}), name) == word
    flag = name.replace("_", "-")
    with pytest.raises(BadInput, match=rf"^--{flag} is 'odd'; it takes {', '.join(CHOICES[name])}"):
        Options(**{name: "odd"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nproc": 0}, "^--nproc is 0; a job has at least 1 rank on each node$"),
        ({"nnodes": 0}, "^--nnodes is 0; a job has at least 1 node$"),
        ({"nnodes": 2, "node_rank": 5}, "^--node-rank is 5 with --nnodes 2; it goes from 0 to 1$"),
        ({"node_rank": 1}, "^--node-rank is 1 with --nnodes 1; give the number of nodes there$"),
    ],
)
def test_numbers_are_checked(given, message):
    with pytest.raises(BadInput, match=message):
        Options(**given)
