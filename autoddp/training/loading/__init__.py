"""Loading of batches: by rows on each rank, once on each node, or whole on every rank."""
