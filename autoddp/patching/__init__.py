"""Declare patches, install them, and undo them exactly. This package does not depend on torch."""

from autoddp.patching.call import Call as Call
from autoddp.patching.call import stands_for as stands_for
from autoddp.patching.feature import Feature as Feature
from autoddp.patching.feature import Patch as Patch
from autoddp.patching.feature import patch as patch
from autoddp.patching.installation import Installation as Installation
from autoddp.patching.slots import ABSENT as ABSENT
from autoddp.patching.slots import assign as assign
from autoddp.patching.slots import find as find
from autoddp.patching.slots import restore as restore
