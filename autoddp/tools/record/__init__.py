"""The recorder of a run: what each rank computed, and how long it took, step by step, in files."""
