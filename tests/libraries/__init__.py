"""Scripts on the libraries that people train with: one process against ranks."""
