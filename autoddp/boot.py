"""A fresh interpreter's first lines: `python boot.py MODULE ARGUMENT ...` calls `main` of a module of ours.

Run by its path, so that the frame at the bottom of the stack is known as ours: that of `python -c` would
pass for a line of the user's. The script finds `sys.path` as `python -c` would leave it.
"""

import importlib
import os
import sys

BOOT = os.path.abspath(__file__)


def boot(module: str, *arguments: str) -> None:
    """Find us, wherever we are installed; whether other packages lie beside us is not the script's affair."""
    sys.path.append(os.path.dirname(os.path.dirname(BOOT)))
    main = importlib.import_module(module).main
    sys.path.pop()
    main(*arguments)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        sys.path[0] = ""  # this file's folder
    boot(*sys.argv[1:])
