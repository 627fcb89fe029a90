"""A student that `auto` never chooses: importing this makes it a method like any other."""

from terrine_experiments.students import forest
from terrine_models.students.models import ARCHITECTURES, METHODS

METHODS["forest"] = forest.Forest
ARCHITECTURES["forest"] = forest.load
