"""What `autoddp verify` is made of: what runs record, how they compare, and why they differ."""
