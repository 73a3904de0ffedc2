"""One process of the job: its place among the ranks, its devices, and how it runs the script."""
