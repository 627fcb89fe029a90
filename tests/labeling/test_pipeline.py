"""A group of requests: what is voted on, what is charged, and who gets which answer."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.databases import SECRET_KEY
from support.ledgers import (
    CLASSES,
    DELTA,
    INTERACTIVE,
    MOST,
    ORDER,
    PUBLISHING_CAP,
    SHARP,
    TOLD_CONFIDENT,
    Told,
    cast_votes,
    images,
    labels,
    one,
    publishing_ledger,
    seqs,
    study,
)
from support.ledgers import PUBLISHING_TEACHERS as THOUSAND
from support.processes import seed_noise
from support.wording import refuses
from terrine_protocol import Outcome, ProjectStatus, Role, TokenCreate
from terrine_server.errors import (
    BudgetExhausted,
    DatabaseUnavailable,
    EnsembleUnavailable,
    ProjectPaused,
    TokenChanged,
)
from terrine_server.labeling.pipeline import Labeling
from terrine_server.ledger import ChargedBatch, NewProject
from terrine_server.ledger.tallies import meter_of
from terrine_server.metrics import Metrics
from terrine_server.owner.sign_in import Tokens
from terrine_server.privacy import (
    Account,
    BoundRelease,
    VoteOutcome,
    build_mechanism,
    quote,
)
from terrine_server.privacy.quoting import publication_z

PLAIN = {"name": "gnmax", "sigma": 50.0}
BASED = {**INTERACTIVE, "threshold": 300, "sigma1": 50.0, "sigma2": 50.0}


@pytest.fixture(autouse=True)
def _repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agreement is answered with nothing once in a million times: not with this noise."""
    seed_noise(monkeypatch)


def test_a_group_is_voted_on_once_and_each_request_gets_its_own(tmp_path: Path) -> None:
    service, voters, ledger = study(tmp_path, SHARP, 9)
    asks = [
        service.check("study", images((3, 0), (4, 1))),
        service.check("study", images((4, 1), (5, 2), (5, 2))),
        service.check("study", images((6, 3))),
    ]
    answers = service.answer("study", asks)
    assert [labels(answer) for answer in answers] == [[3, 4], [4, 5, 5], [6]]
    assert [seqs(answer) for answer in answers] == [[1, 2], [2, 3, 3], [4]]
    assert voters.asked == [[0, 1, 2, 3]], "each new query once, in the order of the requests"
    samples = {
        (s.name, *s.labels.values()): s.value
        for metric in service._metrics.registry.collect()
        for s in metric.samples
    }
    assert samples["terrine_queries_total", "answered", "false"] == 4
    assert samples["terrine_queries_total", "answered", "true"] == 2
    for stage in ("replay", "vote", "release", "charge"):
        assert samples["terrine_stage_seconds_count", stage] == 1
    assert ledger.verifier.verify_project("study").ok

    # A retry among new requests: it is answered from the record, the others are voted on.
    asks = [
        service.check("study", images((7, 4))),
        asks[1],
        service.check("study", images((4, 1), (8, 5))),
    ]
    new, again, more = service.answer("study", asks)
    assert isinstance(new, ChargedBatch)
    assert isinstance(again, ChargedBatch)
    assert isinstance(more, ChargedBatch)
    assert isinstance(answers[1], ChargedBatch)
    assert again.results == [replace(r, replayed=True) for r in answers[1].results]
    assert (labels(new), labels(more)) == ([7], [4, 8])
    assert (seqs(new), seqs(more)) == ([5], [2, 6])
    assert voters.asked[1:] == [[4, 5]]
    assert one(service, asks[0]) == replace(
        new, results=[replace(r, replayed=True) for r in new.results], project=more.project
    )
    assert len(voters.asked) == 2, "nothing on record is voted on again"
    assert ledger.projects.get("study").charges == 6


def test_who_came_by_a_token_that_changed_meanwhile_gets_nothing(tmp_path: Path) -> None:
    service, voters, ledger = study(tmp_path, SHARP, 9)
    tokens = Tokens(ledger, SECRET_KEY)
    new = TokenCreate(role=Role.STUDENT, project="study")
    held = [tokens.authenticate(tokens.create(new).token).record for _ in range(3)]
    kept, revoked, edited = [record for record in held if record is not None]
    ledger.tokens.revoke(revoked.id)
    with closing(sqlite3.connect(tmp_path / "terrine.sqlite")) as file, file:
        file.execute("UPDATE tokens SET expires_at = created_at WHERE id = ?", [edited.id])
    by = (revoked, kept, None, edited, revoked)
    asks = [service.check("study", images((n, n)), None, t) for n, t in enumerate(by)]
    answers = service.answer("study", asks)
    for index in (0, 3, 4):
        assert isinstance(answers[index], TokenChanged)
    assert [labels(answers[index]) for index in (1, 2)] == [[1], [2]]
    assert voters.asked == [[1, 2]]
    assert ledger.projects.get("study").charges == 2
    ledger.projects.set_status("study", ProjectStatus.PAUSED)
    assert isinstance(one(service, asks[0]), TokenChanged), "whoever has no token learns nothing"


def test_only_what_may_be_paid_is_voted_on(tmp_path: Path) -> None:
    service, voters, ledger = study(tmp_path, SHARP, 3)
    ask = service.check("study", images((1, 0), (1, 0), (2, 1), (3, 2), (4, 3), (1, 0)))
    answer = one(service, ask)
    assert labels(answer) == [1, 1, 2, 3, None, 1]
    assert seqs(answer) == [1, 1, 2, 3, None, 1]
    assert voters.asked == [[0, 1, 2]]
    refused = one(service, service.check("study", images((5, 5))))
    assert isinstance(refused, BudgetExhausted)
    assert len(voters.asked) == 1, "nobody votes on what cannot be paid"
    assert labels(one(service, ask)) == [1, 1, 2, 3, None, 1]
    assert ledger.verifier.verify_project("study").ok


def test_an_abstention_leaves_room_for_more_than_the_worst_price_would(tmp_path: Path) -> None:
    service, voters, ledger = study(tmp_path, TOLD_CONFIDENT, 2)
    pairs = [(99, n) for n in range(MOST)]
    answer = one(service, service.check("study", images(*pairs)))
    assert isinstance(answer, ChargedBatch)
    paid = [r for r in answer.results if r.seq is not None]
    assert {r.outcome for r in paid} == {Outcome.ABSTAINED}
    assert {r.label for r in answer.results} == {None}
    project = ledger.projects.get("study")
    assert len(voters.asked[0]) == project.terms.most_admitted(Account())
    assert len(paid) == len(voters.asked[0]) > 2


def test_an_abstention_is_not_voted_on_again(tmp_path: Path) -> None:
    service, voters, _ = study(tmp_path, TOLD_CONFIDENT, 9)
    one(service, service.check("study", images((99, 0), (0, 1))))
    answer = one(service, service.check("study", images((99, 0), (0, 1), (0, 2))))
    assert voters.asked == [[0, 1], [2]]
    assert labels(answer) == [None, 0, 0]
    assert seqs(answer) == [1, 2, 3]


def test_an_answered_input_is_not_voted_on_again_with_any_baseline(tmp_path: Path) -> None:
    service, voters, _ = study(tmp_path, INTERACTIVE, 9)
    one(service, service.check("study", images((1, 0)), np.eye(CLASSES)[[3]]))
    ask = service.check("study", images((1, 0), (2, 1)), np.eye(CLASSES)[[5, 5]])
    answer = one(service, ask)
    assert voters.asked == [[0], [1]]
    assert (labels(answer), seqs(answer)) == ([1, 2], [1, 2])


def test_a_students_label_is_confirmed_by_its_own_row(tmp_path: Path) -> None:
    """Probabilities and baselines of several requests stay with their queries."""
    service, voters, ledger = study(tmp_path, INTERACTIVE, 9)
    eye = np.eye(CLASSES)
    service.answer("study", [service.check("study", images((2, 0)), eye[[5]])])
    asks = [
        service.check("study", images((2, 0), (4, 1)), eye[[5, 4]]),
        service.check("study", images((6, 2), (7, 3)), eye[[8, 7]]),
    ]
    first, second = service.answer("study", asks)
    assert isinstance(first, ChargedBatch)
    assert isinstance(second, ChargedBatch)
    assert (labels(first), labels(second)) == ([2, 4], [6, 7])
    outcomes = [r.outcome for receipt in (first, second) for r in receipt.results]
    assert outcomes == ["answered", "reinforced", "answered", "reinforced"]
    assert voters.asked == [[0], [1, 2, 3]]
    assert ledger.verifier.verify_project("study").ok


def test_what_concerns_the_whole_project_is_raised(tmp_path: Path) -> None:
    service, voters, ledger = study(tmp_path, SHARP, 5)
    asks = [service.check("study", images((1, 0))), service.check("study", images((2, 1)))]
    voters.missing = True
    with refuses(EnsembleUnavailable, "away"):
        service.answer("study", asks)
    voters.missing = False
    for odd in (0, 1):
        stale = [replace(ask, genesis="00" * 32) if i == odd else ask for i, ask in enumerate(asks)]
        with refuses(DatabaseUnavailable, "replaced"):
            service.answer("study", stale)
    ledger.projects.set_status("study", ProjectStatus.PAUSED)
    with pytest.raises(ProjectPaused):
        service.answer("study", asks)
    assert (ledger.projects.get("study").charges, voters.asked) == (0, [])


def test_a_request_that_is_overtaken_gets_what_was_paid_first(tmp_path: Path) -> None:
    service, voters, ledger = study(tmp_path, SHARP, 4)
    inputs = images((1, 0), (2, 1), (3, 2))
    voters.meanwhile = lambda: one(service, service.check("study", inputs[1:2]))
    answer = one(service, service.check("study", inputs))
    assert seqs(answer) == [2, 1, 3]
    assert labels(answer) == [1, 2, 3]
    assert voters.asked == [[0, 1, 2], [1]]
    assert ledger.verifier.verify_project("study").ok


@pytest.mark.parametrize("mechanism", [PLAIN, BASED], ids=lambda m: str(m["name"]))
def test_every_query_is_counted_at_its_own_votes(
    mechanism: Mapping[str, Any], tmp_path: Path
) -> None:
    """A data-dependent project's tally: what it says is secret, and must be exact."""
    built = build_mechanism(mechanism, teachers=THOUSAND, classes=CLASSES)
    figure = BoundRelease(order=ORDER, beta=0.01, sigma=60.0, z=publication_z(DELTA, 1))
    quoted = quote(built, 2.0, DELTA, cap_rule=PUBLISHING_CAP.rule, publishing=(figure, (50,)))
    ledger = publishing_ledger(f"sqlite:///{tmp_path / 'terrine.sqlite'}")
    project = ledger.projects.open(NewProject("study", "thousand", mechanism, quoted))
    service = Labeling(ledger, Told(THOUSAND), Metrics(), MOST)
    inputs = images((1, 0), (99, 1), (2, 2), (99, 3), (3, 4), (4, 5))
    student = np.eye(CLASSES)[[1, 5, 6, 0, 2, 4]] if built.needs_probabilities else None
    ask = service.check("study", inputs, student)
    receipt = one(service, ask)
    assert isinstance(receipt, ChargedBatch)
    meter, votes = meter_of(project), cast_votes(inputs, THOUSAND)
    tally = np.zeros(meter.size, dtype=np.int64)
    for row, result in enumerate(receipt.results):
        theirs = None if ask.baselines is None else ask.baselines[[row]]
        (places,) = meter.places(VoteOutcome(result.outcome), votes[[row]], theirs)
        np.add.at(tally, list(places), 1)
    exact, secret = meter.spend(tally, figure.beta), ledger.projects.secret_spend("study")
    assert (secret.queries, secret.cost) == (6, exact.cost)
    assert secret.smooth_sensitivity == exact.smooth_sensitivity
    assert ledger.verifier.verify_project("study").ok
