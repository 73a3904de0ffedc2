"""One file for each promise kept; each a small class of patches; none imports another."""

from autoddp.patching import Feature

FEATURES: tuple[type[Feature], ...] = ()
