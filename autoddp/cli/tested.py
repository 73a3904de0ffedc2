"""The versions of torch and Python with which tests ran.

The newest torch has had all of them; on the others those ran that touch torch's inner parts.
`python -m tests.versions` runs all on each.
"""

from __future__ import annotations

from collections.abc import Sequence

TORCH = ("2.6", "2.7", "2.8", "2.9", "2.10", "2.11", "2.12", "2.13", "2.14")
PYTHON = ("3.11", "3.12", "3.13")


def words(name: str, version: str, tested: Sequence[str]) -> str:
    """Say with which versions of something the tests ran, and whether this one is among them."""
    among = ".".join(version.split(".")[:2]) in tested
    return f"{name} {', '.join(tested)} (this one {'is' if among else 'is not'} among them)"
