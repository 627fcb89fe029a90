"""Replicas whose people vote, in processes of their own: each function is all that one does."""

from __future__ import annotations

import os
import random

import numpy as np
from migrated import SECRET_KEY
from neighbouring import People, TheirVoters, many
from processes import killed_before

from terrine_server.labeling.pipeline import Labeling
from terrine_server.ledger import ChargedBatch, Ledger, connect
from terrine_server.metrics import Metrics


def replica(ledger: Ledger) -> Labeling:
    """Whose queries are never exhausted, however many they are."""
    voters = TheirVoters(People(spare=True))
    return Labeling(ledger, voters, Metrics(), max_batch=1000)


def ask_but_die(url: str, first: int, last: int, step: int) -> None:
    """Ask some inputs in one request, and be killed just before a statement or a COMMIT."""
    engine = connect(url)
    labeling = replica(Ledger(engine, SECRET_KEY))
    ask = labeling.check("study", np.stack(many(People(), last)[first:]))
    killed_before(engine, step)
    labeling.answer("study", [ask])


def ask_and_tell(url: str, inputs: int, seed: int, log: str) -> None:
    """Ask some of the inputs again and again, and tell the charge of each answer once it is out."""
    labeling, draw = replica(Ledger(connect(url), SECRET_KEY)), random.Random(seed)
    every = many(People(), inputs)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for _ in range(60):
        some = draw.sample(range(inputs), draw.randint(1, 3))
        ask = labeling.check("study", np.stack([every[i] for i in some]))
        (answer,) = labeling.answer("study", [ask])
        assert isinstance(answer, ChargedBatch), answer
        for index, result in zip(some, answer.results, strict=True):
            os.write(descriptor, f"{index} {result.seq}\n".encode())
