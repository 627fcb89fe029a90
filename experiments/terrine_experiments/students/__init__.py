"""Students that `auto` never chooses: importing this makes them methods like any other."""

from terrine_experiments.students import forest, gan
from terrine_models.learning import NETWORKS
from terrine_models.methods import MODELS
from terrine_models.students import ARCHITECTURES

NETWORKS["gan"] = gan.Gan
MODELS["forest"] = forest.Forest
ARCHITECTURES["forest"] = forest.load
