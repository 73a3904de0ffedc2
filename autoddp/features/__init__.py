"""One file for each promise kept; each a small class of patches; none imports another."""

from autoddp.features.averaging import Averaging
from autoddp.features.batchnorm import BatchNorm
from autoddp.features.buffers import Buffers
from autoddp.features.children import Children
from autoddp.features.clocks import Clocks
from autoddp.features.console import Console
from autoddp.features.descriptors import Descriptors
from autoddp.features.downloads import Downloads
from autoddp.features.explanation import Explanation
from autoddp.features.files import Files
from autoddp.features.folders import Folders
from autoddp.features.gradients import Gradients
from autoddp.features.groups import Groups
from autoddp.features.holders import Holders
from autoddp.features.identity import Identity
from autoddp.features.loaders import Loaders
from autoddp.features.local_view import LocalView
from autoddp.features.modules import Modules
from autoddp.features.nodes import Nodes
from autoddp.features.processes import Processes
from autoddp.features.programs import Programs
from autoddp.features.randomness import Randomness
from autoddp.features.scaling import Scaling
from autoddp.features.sharding import Sharding
from autoddp.features.signals import Signals
from autoddp.features.temporary import Temporary
from autoddp.features.trackers import Trackers
from autoddp.features.visible import Visible
from autoddp.features.witness import Witness
from autoddp.patching import Feature

FEATURES: tuple[type[Feature], ...] = (
    Console,
    Randomness,
    Clocks,
    Signals,
    Nodes,  # what it opens, Files looks for on scratch first
    Files,
    Descriptors,
    Holders,
    Trackers,
    Folders,
    Temporary,
    Downloads,
    Programs,
    Processes,
    Children,
    Groups,
    Scaling,
    LocalView,
    Averaging,
    Loaders,
    Visible,
    Modules,
    BatchNorm,
    Gradients,
    Buffers,
    Sharding,  # hides gradients after they were compared
    Explanation,
    Identity,
    Witness,
)
