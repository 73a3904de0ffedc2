"""The commands that are built upon whole runs of a script: verify and bench."""
