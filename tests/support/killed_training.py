"""The training of an ensemble of digits, killed after its first file."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def train_until_killed(out: Path, seed: int) -> None:
    """Train 60 teachers of digits, which are kept 50 to a file."""
    import torch
    from digits import known_digits

    from terrine_models.teachers.kinds import Heads
    from terrine_models.teachers.training import train_ensemble

    torch.set_num_threads(1)

    def die(done: int) -> None:
        if done:
            os.kill(os.getpid(), signal.SIGKILL)

    config = Heads(width=40, augmentations=1)
    train_ensemble(
        known_digits(), out, name="a", teachers=60, config=config, seed=seed, on_trained=die
    )
