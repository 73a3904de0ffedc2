"""The start of a fresh interpreter: `python boot.py MODULE ARGUMENT ...` calls `MODULE.main`.

The file is run by its path, so that the frame at the bottom of the stack is known as autoddp's: the
frame of `python -c` would pass for a line of the user's. The script finds `sys.path` as
`python -c` leaves it.
"""

import importlib
import os
import sys

BOOT = os.path.abspath(__file__)

if __name__ == "__main__":
    if sys.flags.safe_path:
        sys.path.insert(0, "")  # else it has this file's folder there
    # this package, even if another autoddp is installed
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(BOOT)))
    module = importlib.import_module(sys.argv[1])
    sys.path[:1] = [] if sys.flags.safe_path else [""]
    module.main(*sys.argv[2:])
