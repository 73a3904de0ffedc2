"""The ranks of a job and what they say to each other; nothing in this folder knows a file."""
