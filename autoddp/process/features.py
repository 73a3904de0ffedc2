"""The list of all features: each is a class of patches in its own file; none imports another."""

from autoddp.effects.children import Children
from autoddp.effects.clocks import Clocks
from autoddp.effects.console import Console
from autoddp.effects.downloads import Downloads
from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from autoddp.effects.library_files import Holders
from autoddp.effects.nodes import Nodes
from autoddp.effects.programs import Programs
from autoddp.effects.randomness import Randomness
from autoddp.effects.signals import Signals
from autoddp.effects.temporary import Temporary
from autoddp.effects.trackers import Trackers
from autoddp.effects.witness import Witness
from autoddp.patching import Feature
from autoddp.process.frames import Frames
from autoddp.process.own_groups import Groups
from autoddp.training.averaging import Averaging
from autoddp.training.explanation import Explanation
from autoddp.training.gradients import Gradients
from autoddp.training.loading.loaders import Loaders
from autoddp.training.local_view import LocalView
from autoddp.training.modules import Modules
from autoddp.training.parameters.feature import ShardedParameters
from autoddp.training.placement import Placement
from autoddp.training.rowwise import Rowwise

FEATURES: tuple[type[Feature], ...] = (
    Frames,
    Console,
    Randomness,
    Clocks,
    Signals,
    Nodes,
    Files,
    Holders,
    Trackers,
    Folders,
    Temporary,
    Downloads,
    Programs,
    Children,
    Groups,
    LocalView,
    Averaging,
    Loaders,
    ShardedParameters,
    Modules,
    Rowwise,
    Gradients,
    Placement,
    Explanation,
    Witness,
)
