"""Runs of a script in private copies of its folder, from which nothing is left behind: see `runs`."""
