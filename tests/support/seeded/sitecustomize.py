"""Python processes with this directory in PYTHONPATH draw the same noise each time.

`seed_noise` of `processes.py` does so within a process.
"""

from __future__ import annotations

import os

import numpy as np

from terrine_server.privacy import noise

_draw, _random = noise._uniform, np.random.default_rng(int(os.environ["TESTS_NOISE_SEED"]))
noise._uniform = lambda count, entropy: _draw(count, _random.bytes)
