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
