"""`autoddp bench`: how fast a script runs in several ways, and where the time goes."""
