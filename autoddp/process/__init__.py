"""One process of the job: who it is, and how it runs the script."""
