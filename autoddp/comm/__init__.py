"""The ranks of a job and their communication; nothing in this folder knows the script's files."""
