"""Students that `auto` never chooses: importing this makes them methods like any other."""

from terrine_experiments.students import forest, gan
from terrine_models.students.methods import METHODS
from terrine_models.students.models import ARCHITECTURES

METHODS["gan"] = gan.Gan
METHODS["forest"] = forest.Forest
ARCHITECTURES["forest"] = forest.load
