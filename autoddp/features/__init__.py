"""One file for each promise kept; each a small class of patches; none imports another."""

from autoddp.features.batchnorm import BatchNorm
from autoddp.features.gradients import Gradients
from autoddp.features.loaders import Loaders
from autoddp.features.modules import Modules
from autoddp.patching import Feature

FEATURES: tuple[type[Feature], ...] = (Loaders, Modules, BatchNorm, Gradients)
