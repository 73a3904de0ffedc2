"""The parts of `autoddp bench`: the ways to run a script, where their time goes, and advice."""
