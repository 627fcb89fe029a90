"""Noise that is the same each time, for tests that are not about noise.

In this process by `seed_noise`, in processes that a test starts by `REPEATED` in their environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from terrine_server.privacy import noise
from terrine_server.privacy.published import ActualCost, BoundRelease

SEED = "TESTS_NOISE_SEED"
REPEATED = {SEED: "0", "PYTHONPATH": str(Path(__file__).parent / "seeded")}
"""Environment of a process whose noise, and that of the processes it starts, is repeated."""


def seed_noise(patch: pytest.MonkeyPatch, seed: int = 0) -> None:
    """Draw all noise of this process, and of published figures, from `seed` on, as long as the
    patch lasts.

    Everything after the random bytes is the production code. With several clients at a time, who
    gets which noise depends on who comes first.
    """
    draw, random = noise._uniform, np.random.default_rng(seed)
    patch.setattr(noise, "_uniform", lambda count, entropy: draw(count, random.bytes))
    release = BoundRelease.release

    def released(self: BoundRelease, spend: ActualCost, worst: int, entropy: Any = None) -> int:
        return release(self, spend, worst, random.bytes)

    patch.setattr(BoundRelease, "release", released)
