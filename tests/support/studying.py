"""A study of the digits' student: the settings that tests share, and how one is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from server import RunningServer

from terrine_client import Client
from terrine_client.distill import Distilled, distill
from terrine_models.students.settings import Training

QUICK = Training(method="ridge")
CONFIDENT = {"name": "confident_gnmax", "threshold": 24, "sigma1": 8.0, "sigma2": 4.0}
# Pays for 79 queries of CONFIDENT, whatever their outcomes.
AMPLE = 15.0
INTERACTIVE = {**CONFIDENT, "name": "interactive_gnmax", "threshold": 20, "confidence": 0.9}


def study(
    server: RunningServer, client: Client, out: Path, training: Training = QUICK, **options: Any
) -> Distilled:
    digits = server.ensemble
    own = (digits.unseen, digits.unseen_labels)
    return distill(client, digits.public, out, held_out=own, training=training, **options)
