"""`autoddp verify`: compare runs on ranks with runs of one process, and explain differences."""
