"""The commands that run a script several times: verify and bench."""
