"""Students that `auto` never chooses: importing this makes them methods like any other."""

from terrine_experiments.students import forest, gan, networks
from terrine_models.students.models import ARCHITECTURES, METHODS

METHODS["supervised"] = networks.Network
METHODS["gan"] = gan.Gan
METHODS["forest"] = forest.Forest
ARCHITECTURES["forest"] = forest.load
ARCHITECTURES |= dict.fromkeys(("edges", "mlp"), networks.load)
