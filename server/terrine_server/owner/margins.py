"""Margins of a private table: what they cost, how they are released, and the pool made of them.

    release = plan_release(questions, units=32_561, epsilon=1.0, delta=1e-6)
    margins = ask_margins(ledger, settings, project, questions)  # charged before anything is told
    pool = design_pool(schema, margins, rows=8_000)

A person is a voter on every question (`terrine_models.teachers.margins`), the mechanism is
`noisy_votes`, and questions are asked through the pipeline of labels: so a release is priced,
charged, sealed, logged and audited like any other answer, and to ask again costs nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from terrine_models.storage.manifests import StoreError
from terrine_models.tables.designed import Margins, Question
from terrine_models.teachers.kinds import pool_bytes
from terrine_server.errors import EnsembleUnavailable, NotFound, ServiceError
from terrine_server.labeling.local_voters import LocalVoters, check_manifest
from terrine_server.labeling.pipeline import Labeling
from terrine_server.ledger import EnsembleRecord, Ledger, ProjectRecord
from terrine_server.metrics import Metrics
from terrine_server.planning.first_project import sigma_for_rows
from terrine_server.privacy import NoisyVotes, ParameterError, quote
from terrine_server.privacy.parameters import MAX_SIGMA
from terrine_server.privacy.quoting import SAMPLER_SHARE
from terrine_server.settings import Settings

MARGIN_SHARE = 0.05
"""Of the budget, for the margins: on Adult, 2 to 10 % made students as good."""
EPSILONS = tuple(
    float(f"{digits}e{exponent}") for exponent in range(-6, 1) for digits in range(100, 1000)
)
"""With three digits, which are easy to type."""


@dataclass(frozen=True)
class MarginRelease:
    """How a budget of ε is divided between margins and votes. Together they keep to it."""

    epsilon: float
    """Of the margins."""
    sigma: float
    queries: int
    votes_epsilon: float


def plan_release(
    questions: Sequence[Question],
    *,
    units: int,
    epsilon: float,
    delta: float,
    share: float = MARGIN_SHARE,
) -> MarginRelease:
    """Divide a budget of (ε, δ) between a release of margins and a project of noisy votes.

    In Gaussian DP the two add up: μ² of both is at most that of ε, at what δ leaves after the δ
    that drawing noise adds, for each. Raises `ParameterError` if that pays for no margins.
    """
    cells = max(each.cells for each in questions)
    mechanism = NoisyVotes(units, cells, MAX_SIGMA)

    def cost(epsilon: float, delta: float) -> int:
        try:
            return quote(mechanism, epsilon, delta).budget
        except ParameterError:
            return 0  # not for a single query: too little, and not too much

    whole = cost(epsilon, delta * float(1 - 2 * SAMPLER_SHARE))
    of_margins = EPSILONS[
        bisect_right(EPSILONS, share * whole, key=lambda each: cost(each, delta)) - 1
    ]
    of_votes = EPSILONS[
        bisect_right(EPSILONS, whole - cost(of_margins, delta), key=lambda each: cost(each, delta))
        - 1
    ]
    sigma = sigma_for_rows(len(questions), units, cells, of_margins, delta)
    return MarginRelease(of_margins, sigma, len(questions), of_votes)


def ask_margins(
    ledger: Ledger, settings: Settings, project: ProjectRecord, questions: Sequence[Question]
) -> Margins:
    """Ask a project all its questions, and return what the answers show. Paid once.

    Raises a `ServiceError` if they were not all answered.
    """
    voters = LocalVoters(settings.data_dir, "cpu")
    labeling = Labeling(ledger, voters, Metrics(), max_batch=len(questions))
    asked = labeling.check(project.name, np.arange(len(questions), dtype=np.uint8)[:, None])
    (found,) = labeling.answer(project.name, [asked])
    if isinstance(found, ServiceError):
        raise found
    counts = [result.counts for result in found.results if result.counts is not None]
    if len(counts) < len(questions):
        raise EnsembleUnavailable(
            f"Only {len(counts)} of {len(questions)} questions of {project.name} were answered: "
            "its budget was spent otherwise. Open another project for the margins."
        )
    sigma = float(str(project.mechanism["sigma"]))
    return Margins.of_counts(questions, np.array(counts), sigma=sigma, units=project.ensemble.units)


def read_pool(settings: Settings, record: EnsembleRecord) -> bytes:
    """Return the designed pool of a registered ensemble, verified, as an .npz archive.

    Raises NotFound if its students have inputs of their own, and EnsembleUnavailable.
    """
    if not record.facts.designed:
        raise NotFound(
            f"Nothing was designed to be asked of {record.name}: its students ask public inputs "
            "of their own."
        )
    directory = settings.data_dir / record.path
    try:
        check_manifest(record, directory)
        return pool_bytes(directory)
    except StoreError as error:
        raise EnsembleUnavailable(str(error)) from error
