"""Data-dependent projects on a thousand teachers with invented votes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from books import FACTS, RECORDS, digest
from migrated import SECRET_KEY, migrated

from terrine_server.ledger import Ledger, NewProject, ProjectRecord, Proposal
from terrine_server.ledger.accounts import meter_of
from terrine_server.planning.consensus import Consensus, Votes
from terrine_server.planning.publishing import choose_schedule
from terrine_server.privacy import Terms, VoteOutcome, build_mechanism, cap, quote

TEACHERS, CLASSES, ORDER = 1000, 10, 10.0
EPSILON, DELTA = 2.0, 1e-6
CAP = cap(20.0, 1.5e-5, ORDER)
GNMAX = {"name": "gnmax", "sigma": 50.0}
CONSENSUS = (Consensus(0.95, 7), Consensus(0.8, 2), Consensus(0.5, 1))


@lru_cache
def published_terms(epsilon: float = EPSILON) -> Terms:
    """Terms of GNMax, with the release and the schedule that suit the expected consensus."""
    votes = Votes.synthetic(CONSENSUS, teachers=TEACHERS, classes=CLASSES)
    publishing = choose_schedule(GNMAX, votes, epsilon=epsilon, delta=DELTA, order=ORDER)
    return quote(
        build_mechanism(GNMAX, teachers=TEACHERS, classes=CLASSES),
        epsilon,
        DELTA,
        cap_rule=CAP.rule,
        publishing=publishing,
    )


def publishing_ledger(url: str) -> Ledger:
    """A migrated database with one ensemble, `thousand`, whose cap has a Rényi order."""
    ledger = Ledger(migrated(url), SECRET_KEY)
    info = FACTS.model_copy(update={"teachers": TEACHERS})
    ledger.register_ensemble(
        "thousand",
        "ensembles/thousand",
        digest("thousand").hex(),
        info,
        RECORDS,
        CAP,
        population="thousand",
        disjoint=True,
    )
    return ledger


def open_published(ledger: Ledger, name: str = "study") -> ProjectRecord:
    return ledger.open_project(NewProject(name, "thousand", GNMAX, published_terms()))


def voted(
    project: ProjectRecord, queries: Sequence[object], agreement: float = 0.95
) -> list[Proposal]:
    """Queries that the teachers answered, a share `agreement` of them with the winner."""
    votes = np.zeros((1, CLASSES), dtype=np.int64)
    votes[0, :2] = round(agreement * TEACHERS), TEACHERS - round(agreement * TEACHERS)
    (places,) = meter_of(project).places(VoteOutcome.ANSWERED, votes)
    return [
        Proposal(digest(query), digest(query), VoteOutcome.ANSWERED, 0, places) for query in queries
    ]
