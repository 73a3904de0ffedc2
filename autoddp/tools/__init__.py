"""What is built upon whole runs: verify, bench."""
