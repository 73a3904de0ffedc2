"""The entry point of `python -m autoddp`."""

from autoddp.cli import main

if __name__ == "__main__":
    main()
