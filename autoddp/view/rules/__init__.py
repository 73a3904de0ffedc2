"""The rules, in files as torch's documentation groups functions.

Each answers with a local call, with a result, or with NotImplemented: then its function gathers.
"""

from importlib import import_module
from pkgutil import iter_modules

for _found in iter_modules(__path__, f"{__name__}."):
    import_module(_found.name)  # it fills the table
