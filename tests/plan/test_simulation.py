"""Queries without a service are answered and charged as a project's are."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

import numpy as np
import pytest

from terrine_protocol import Outcome
from terrine_server.ledger import RecordedCharges
from terrine_server.ledger.charging import admit
from terrine_server.ledger.records import Proposal
from terrine_server.planning.opening import choose
from terrine_server.planning.simulation import REFUSED, simulate
from terrine_server.privacy import (
    GDP,
    Account,
    ComparesWithStudent,
    ParameterError,
    build_mechanism,
)

TEACHERS, CLASSES, QUERIES = 250, 5, 400
SPECS: list[Mapping[str, object]] = [
    {"name": "gnmax", "sigma": 40.0},
    {"name": "noisy_votes", "sigma": 40.0},
    {"name": "lnmax", "gamma": 0.05},
    {"name": "confident_gnmax", "threshold": 150, "sigma1": 40.0, "sigma2": 25.0},
    {
        "name": "interactive_gnmax",
        "threshold": 100,
        "sigma1": 40.0,
        "sigma2": 25.0,
        "confidence": 0.9,
    },
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: str(spec["name"]))
def test_a_simulation_is_admitted_and_charged_as_the_ledger_would(
    spec: Mapping[str, object],
) -> None:
    mechanism = build_mechanism(spec, teachers=TEACHERS, classes=CLASSES)
    random = np.random.default_rng(1)
    agreement = random.uniform(0.3, 1, QUERIES)
    votes = np.array(
        [random.multinomial(TEACHERS, [a] + [(1 - a) / 4] * 4) for a in agreement], dtype=np.int64
    )
    probabilities = random.dirichlet(np.ones(CLASSES), QUERIES)
    asked = probabilities if mechanism.needs_probabilities else None
    found = simulate(
        votes, mechanism, 2, 1e-6, probabilities=asked, entropy=np.random.default_rng(7).bytes
    )

    quoted = choose(mechanism, 2, 1e-6, cap_rule=GDP)
    drawn = quoted.mechanism.release(votes, asked, np.random.default_rng(7).bytes)
    baselines = np.zeros(QUERIES, dtype=np.int64)
    if isinstance(mechanism, ComparesWithStudent):
        baselines = mechanism.canonical_baseline(probabilities).min(axis=1)
    proposals = [
        Proposal(
            query_digest=sha256(bytes([row % 256, row // 256])).digest(),
            input_digest=sha256(bytes([row % 256, row // 256])).digest(),
            outcome=outcome,
            label=None if label < 0 else int(label),
            baseline=int(baselines[row]),
        )
        for row, (outcome, label) in enumerate(zip(drawn.outcomes, drawn.labels, strict=True))
    ]
    admission = admit(quoted.terms, Account(), RecordedCharges({}, {}), proposals)
    outcomes = [result.outcome.value for result in admission.results]
    labels = [-1 if result.label is None else result.label for result in admission.results]
    assert found.outcomes.tolist() == outcomes
    assert found.labels.tolist() == labels
    assert found.epsilon == quoted.terms.epsilon_spent(admission.account.spent) <= 2
    assert 0 < outcomes.count(Outcome.REFUSED) < QUERIES, "the budget decides somewhere"


def test_counts_are_kept_of_what_is_paid() -> None:
    mechanism = build_mechanism({"name": "noisy_votes", "sigma": 40.0}, teachers=250, classes=3)
    votes = np.tile(np.array([[200, 30, 20]]), (300, 1))
    found = simulate(votes, mechanism, 1, 1e-6, entropy=np.random.default_rng(3).bytes)
    refused = found.outcomes == REFUSED
    assert refused.any()
    assert found.counts is not None
    assert not found.counts[refused].any()
    assert found.counts[~refused].argmax(axis=1).tolist() == found.labels[~refused].tolist()


def test_a_student_that_is_needed_is_asked_for() -> None:
    mechanism = build_mechanism(SPECS[4], teachers=TEACHERS, classes=CLASSES)
    with pytest.raises(ParameterError):
        simulate(np.full((2, CLASSES), TEACHERS // CLASSES), mechanism, 1, 1e-6)
