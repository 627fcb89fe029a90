"""Train the teacher of one owner of the demo, in its container: `make owners-demo`.

Arguments: which owner, from 0, and how many there are. Each has every so many-th of 1,200 images.
"""

import sys
from dataclasses import replace

from terrine_addons.demo.material import digits
from terrine_models.teachers.training import train_ensemble
from terrine_server.settings import Settings

number, owners = map(int, sys.argv[1:])
out = Settings().ensembles_dir / "teacher"
if (out / "manifest.json").exists():
    print(f"Owner {number + 1} of {owners} has a teacher already; it is kept.")
    sys.exit()
material = digits("")
everything = material.private
mine = replace(
    everything, inputs=everything.inputs[number::owners], labels=everything.labels[number::owners]
)
train_ensemble(mine, out, name="teacher", teachers=5, config=material.heads)
print(f"Owner {number + 1} of {owners}: a teacher of {len(mine)} images.")
