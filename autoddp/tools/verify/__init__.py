"""The parts of `autoddp verify`: what runs record, how they compare, and why they differ."""
