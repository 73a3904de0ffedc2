"""The start of a fresh interpreter: `python boot.py MODULE ARGUMENT ...` calls `MODULE.main`.

The file is run by its path, so that the frame at the bottom of the stack is known as autoddp's: the
frame of `python -c` would pass for a line of the user's. The script finds `sys.path` as
`python -c` leaves it.
"""

import importlib
import importlib.util
import os
import sys

BOOT = os.path.abspath(__file__)


def boot(module: str, *arguments: str) -> None:
    """Import the package that this file is in, and call `main` of `module`.

    The package is this one even if another autoddp is installed.
    """
    folder = os.path.dirname(os.path.dirname(BOOT))
    spec = importlib.util.spec_from_file_location(
        "autoddp", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["autoddp"] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    importlib.import_module(module).main(*arguments)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        sys.path[0] = ""  # in place of this file's folder
    boot(*sys.argv[1:])
