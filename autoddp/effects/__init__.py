"""The outside world: what becomes of a side effect, so that it happens once."""
