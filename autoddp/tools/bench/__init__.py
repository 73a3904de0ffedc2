"""The parts of `autoddp bench`: the ways to run a script, how fast they are, where time goes."""
