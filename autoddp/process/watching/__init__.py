"""The watch for hangs: ranks that wait in vain are found, each rank's place told, the job ended."""
