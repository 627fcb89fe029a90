"""Students that `auto` never chooses: importing this makes them methods like any other."""

from terrine_experiments.students import forest, gan
from terrine_models.students.methods import MODELS
from terrine_models.students.models import ARCHITECTURES
from terrine_models.students.networks import NETWORKS

NETWORKS["gan"] = gan.Gan
MODELS["forest"] = forest.Forest
ARCHITECTURES["forest"] = forest.load
