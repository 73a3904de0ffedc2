"""The rules, grouped in files as torch's documentation groups functions.

A rule returns a `LocalCall`, the result, or NotImplemented to gather.
"""

from importlib import import_module
from pkgutil import iter_modules

for _found in iter_modules(__path__, f"{__name__}."):
    import_module(_found.name)  # registers its rules
