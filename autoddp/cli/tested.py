"""The versions of torch and Python with which autoddp was tested.

All tests ran with the newest torch, and those of torch's internals with the others.
`python -m tests.versions` runs them.
"""

from __future__ import annotations

from collections.abc import Sequence

TORCH = ("2.6", "2.7", "2.8", "2.9", "2.10", "2.11", "2.12", "2.13", "2.14")
PYTHON = ("3.11", "3.12", "3.13")


def words(name: str, version: str, tested: Sequence[str]) -> str:
    """Return the tested versions of a package, and whether this version is one of them."""
    among = ".".join(version.split(".")[:2]) in tested
    return f"{name} {', '.join(tested)} (this one {'is' if among else 'is not'} among them)"
