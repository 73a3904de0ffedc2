"""One file for each promise kept; each a small class of patches; none imports another."""
