"""The proof that a module treats rows one by one."""
