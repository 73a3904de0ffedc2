"""The watch for hangs: it finds ranks that wait in vain, shows where each is, and ends the job."""
