"""The client and the real server, over a real socket: students, auditors and owners."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from support.databases import SQLITE_BY_DAY
from terrine_client import (
    AsyncClient,
    CapExceeded,
    Client,
    Conflict,
    Forbidden,
    InvalidTerms,
    NotFound,
    Outcome,
    ProjectClosed,
    ProjectPaused,
    Unauthorized,
)
from terrine_protocol import EnsembleAccount, ProjectOpen, ProjectStatus, Role, TokenCreate
from terrine_protocol.mechanisms import ConfidentGNMaxSpec, GNMaxSpec

if TYPE_CHECKING:
    from support.servers import RunningServer

GNMAX = GNMaxSpec(name="gnmax", sigma=4)


def terms(**changed: object) -> ProjectOpen:
    usual = {"name": "p", "ensemble": "digits", "mechanism": GNMAX, "epsilon": 5, "delta": 1e-5}
    return ProjectOpen.model_validate(usual | changed)


def test_a_student_gets_labels_and_gets_them_again_for_free(terrine_server: RunningServer) -> None:
    terrine_server.open_project(mechanism={"name": "gnmax", "sigma": 4.0}, epsilon=20)
    x, truth = terrine_server.ensemble.public[:60], terrine_server.ensemble.public_labels[:60]
    with Client(terrine_server.url, terrine_server.token(), batch_size=16) as client:
        assert client.budget().affordable >= 60
        labels = client.label(x)
        assert labels.answered.all()
        assert np.mean(labels.labels == truth) > 0.8
        assert labels.charges.tolist() == list(range(1, 61))
        assert not labels.replayed.any()
        assert labels.budget == client.budget()
        assert labels.budget.spent == 60 * client.project().prices[Outcome.ANSWERED].cost

        order = np.random.default_rng(1).permutation(60)
        again = client.label(x[order])
        assert again.labels.tolist() == labels.labels[order].tolist()
        assert again.charges.tolist() == labels.charges[order].tolist()
        assert again.replayed.all()
        assert again.budget.spent == labels.budget.spent


def test_an_abstention_is_paid_for_and_has_no_label(terrine_server: RunningServer) -> None:
    spec = {"name": "confident_gnmax", "threshold": 40, "sigma1": 12.0, "sigma2": 4.0}
    terrine_server.open_project(mechanism=spec, epsilon=20)
    with Client(terrine_server.url, terrine_server.token()) as client:
        labels = client.label(terrine_server.ensemble.public[:40])
    abstained = labels.outcomes == Outcome.ABSTAINED
    assert 0 < abstained.sum() < 40
    assert (labels.labels[abstained] == -1).all()
    assert (labels.charges > 0).all()
    assert labels.counts[Outcome.ANSWERED] == labels.answered.sum() == 40 - abstained.sum()


def test_a_batch_over_the_servers_limit_is_split(terrine_server: RunningServer) -> None:
    terrine_server.open_project(epsilon=20)
    x = np.tile(terrine_server.ensemble.public[:20], (250, 1, 1))
    with Client(terrine_server.url, terrine_server.token(), batch_size=5000) as client:
        labels = client.label(x)
    assert len(labels) == 5000
    assert labels.labels.reshape(250, 20).tolist() == [labels.labels[:20].tolist()] * 250
    assert labels.budget.charges == 20


@pytest.mark.usefixtures("each_database_url")
@SQLITE_BY_DAY
def test_an_owner_runs_a_project_from_opening_to_audit(terrine_server: RunningServer) -> None:
    url, x = terrine_server.url, terrine_server.ensemble.public[:5]
    with Client(url, terrine_server.token("admin")) as owner:
        opened = owner.open_project(terms(name="study"))
        assert opened.status is ProjectStatus.ACTIVE
        assert opened.warning is not None
        assert owner.project("study") == opened.model_copy(update={"warning": None})
        with pytest.raises(Conflict):
            owner.open_project(terms(name="study"))
        with pytest.raises(CapExceeded):
            owner.open_project(terms(name="greedy", epsilon=100))
        with pytest.raises(InvalidTerms):
            owner.open_project(
                terms(
                    mechanism=ConfidentGNMaxSpec(
                        name="confident_gnmax", threshold=41, sigma1=12, sigma2=4
                    )
                )
            )
        with pytest.raises(NotFound):
            owner.open_project(terms(ensemble="nowhere"))
        (ensemble,) = owner.ensembles()
        assert isinstance(ensemble, EnsembleAccount)
        assert 0 < ensemble.reserved <= ensemble.cap

        made = owner.create_token(TokenCreate(role=Role.STUDENT, project="study", label="Ward 7"))
        with Client(url, made.token) as student:
            labels = student.label(x)
            owner.set_status("study", ProjectStatus.PAUSED)
            with pytest.raises(ProjectPaused):
                student.label(x)
            owner.set_status("study", ProjectStatus.ACTIVE)
            assert student.label(x).replayed.all()
            assert "Ward 7" in [token.label for token in owner.tokens()]
            assert owner.revoke_token(made.id).revoked_at is not None
            with pytest.raises(Unauthorized):
                student.label(x)

        reader = owner.create_token(TokenCreate(role=Role.AUDITOR))
        with Client(url, reader.token) as auditor:
            assert [account.project for account in auditor.ledger()] == ["study"]
            charges = list(auditor.charges("study"))
            assert [charge.seq for charge in charges] == [1, 2, 3, 4, 5]
            assert [charge.label for charge in charges] == labels.labels.tolist()
            assert list(auditor.charges("study", outcome=Outcome.ABSTAINED)) == []
            moment = charges[2].created_at
            assert [c.seq for c in auditor.charges("study", until=moment)] == [
                c.seq for c in charges if c.created_at < moment
            ]
            found = auditor.verify("study")
            assert (found.ok, found.charges, found.head) == (True, 5, charges[-1].hash)
            with pytest.raises(NotFound):
                auditor.verify("nothing")
            with pytest.raises(Forbidden):
                auditor.set_status("study", ProjectStatus.CLOSED)

        assert owner.set_status("study", ProjectStatus.CLOSED).closed_at is not None
        with pytest.raises(Conflict):
            owner.set_status("study", ProjectStatus.ACTIVE)
        late = owner.create_token(TokenCreate(role=Role.STUDENT, project="study"))
        with Client(url, late.token) as student, pytest.raises(ProjectClosed):
            student.label(x)


async def test_all_tokens_are_listed_however_many_pages_they_take(
    terrine_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("terrine_client.client._PAGE", {"limit": "2"})
    url, token = terrine_server.url, terrine_server.token("admin")
    for _ in range(4):
        terrine_server.token("auditor")
    with Client(url, token) as client:
        listed = client.tokens()
    assert len({token.id for token in listed}) == len(listed) == 5
    async with AsyncClient(url, token) as client:
        assert await client.tokens() == listed
