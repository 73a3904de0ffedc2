"""What `autoddp bench` is made of: the ways to run a script, where their time goes, and what that advises."""
