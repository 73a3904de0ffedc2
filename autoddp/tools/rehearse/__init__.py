"""Runs of a script in private copies of its folder that leave nothing behind: see `runs`."""
