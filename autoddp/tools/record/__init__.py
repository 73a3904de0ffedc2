"""The recorder of a run, which writes the numbers or the times of each step on each rank."""
