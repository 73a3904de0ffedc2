"""Loading of batches: rows on each rank, once on each node, or whole on every rank."""
