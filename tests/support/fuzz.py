"""What the properties share: the number of examples, what a user's word may be, what our error is.

Each night, 10,000 of each, some 40 minutes:

    HYPOTHESIS_PROFILE=nightly pytest --timeout 3600 tests -k fuzz
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from autoddp.errors import BadInput

# what a shell may hand over: no NUL; bytes that are no UTF-8 come as lone surrogates
WORDS = st.text(st.characters(exclude_characters="\0"), max_size=12)
HUGE = st.sampled_from(
    [2**31 - 1, 2**31, 2**31 + 1, -(2**31), -(2**31) - 1, 2**63, 10**30, -(10**30), 10**400]
)
NUMBERS = st.integers(-2, 9) | HUGE | st.integers(60_000, 70_000)
ODD = st.sampled_from(
    [
        "",
        " ",
        "2 ",
        "\t3\n",
        "+2",
        "-0",
        "007",
        "1_0",
        "1.0",
        "1e3",
        "0x2",
        "²",
        "٣",
        "½",
        "nan",
        "None",
        "True",
        "9" * 5000,
    ]
)
NUMERALS = NUMBERS.map(str) | ODD | WORDS


def examples(few: int) -> Any:
    """Settings: so few examples in the suite, as many as the nightly profile says there."""
    most = settings.default.max_examples
    return settings(
        max_examples=most if most >= 10_000 else few,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def refusal(act: Callable[[], Any]) -> tuple[Any, str | None]:
    """What `act()` returns, or the one line by which we refuse it; any other error is a crash."""
    try:
        return act(), None
    except BadInput as error:
        text = str(error)
        assert text, "an error says what is wrong"
        assert len(text.splitlines()) == 1, f"more than a line: {text!r}"
        return None, text
