"""What only a machine with GPUs can tell, in one command: `python -m tests.gpu`."""
