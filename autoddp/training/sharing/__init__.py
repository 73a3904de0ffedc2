"""A batch is loaded by the first rank of a node, and handed to the others of that node."""
