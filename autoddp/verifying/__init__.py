"""What `autoddp verify` is made of: private runs, what they record, how they compare, and why they differ."""
