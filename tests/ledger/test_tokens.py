"""Tokens are remembered without their secrets."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from support.databases import SECRET_KEY
from support.ledgers import digest, open_ledger, open_project
from support.wording import refuses
from terrine_protocol import Role, TokenCreate
from terrine_server.errors import Conflict, NotFound, TokenChanged, Unauthorized
from terrine_server.ledger import Ledger, NewToken, TokenRecord
from terrine_server.owner.sign_in import Tokens

LATER = datetime(2100, 1, 2, 3, 4, 5, 6, tzinfo=UTC)


def attended(url: str) -> Ledger:
    ledger = open_ledger(url)
    open_project(ledger, 1)
    return ledger


@pytest.fixture
def ledger(database_url: str) -> Ledger:
    return attended(database_url)


@pytest.fixture
def each_ledger(each_database_url: str) -> Ledger:
    return attended(each_database_url)


def create(
    ledger: Ledger, id: str, role: Role = Role.STUDENT, project: str | None = "study"
) -> TokenRecord:
    return ledger.tokens.create(
        NewToken(
            id=id, hash=digest(id), role=role, project=project, label="for tests", expires_at=LATER
        )
    )


def test_a_token_comes_back_as_it_was_made(ledger: Ledger) -> None:
    token = create(ledger, "one")
    assert ledger.tokens.find("one") == token
    assert (token.role, token.project, token.label) == (Role.STUDENT, "study", "for tests")
    assert (token.hash, token.expires_at, token.revoked_at) == (digest("one"), LATER, None)
    assert abs(token.created_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert ledger.tokens.find("another") is None


def test_an_expiry_in_any_zone_is_the_same_instant(each_ledger: Ledger) -> None:
    from datetime import timezone

    eastern = LATER.astimezone(timezone(timedelta(hours=-5)))
    token = each_ledger.tokens.create(
        NewToken(
            id="one", hash=digest(1), role=Role.ADMIN, project=None, label="", expires_at=eastern
        )
    )
    assert token.expires_at == LATER


def test_a_students_token_belongs_to_one_project_and_others_to_none(ledger: Ledger) -> None:
    assert create(ledger, "auditor", Role.AUDITOR, None).project is None
    for role, project in [(Role.STUDENT, None), (Role.ADMIN, "study"), (Role.AUDITOR, "study")]:
        with pytest.raises(Conflict):
            create(ledger, "wrong", role, project)
    with pytest.raises(NotFound):
        create(ledger, "wrong", Role.STUDENT, "nobody")
    with pytest.raises(Conflict):
        create(ledger, "auditor", Role.ADMIN, None)


def test_revoking_is_remembered_once(ledger: Ledger) -> None:
    create(ledger, "one")
    revoked = ledger.tokens.revoke("one")
    assert revoked.revoked_at is not None
    assert ledger.tokens.revoke("one") == revoked
    assert ledger.tokens.find("one") == revoked
    with pytest.raises(NotFound):
        ledger.tokens.revoke("another")


def test_a_token_is_looked_up_once_more_with_what_is_on_record(ledger: Ledger) -> None:
    """Whoever waited in a queue meanwhile is not answered by a token that was revoked."""
    tokens = Tokens(ledger, SECRET_KEY)
    token = tokens.create(TokenCreate(role=Role.STUDENT, project="study")).token
    found = tokens.authenticate(token)
    assert found.record is not None
    ledger.charging.look_up("study", [], {found.record})
    ledger.tokens.revoke(found.token_id)
    with pytest.raises(TokenChanged) as changed:
        ledger.charging.look_up("study", [], {found.record})
    assert changed.value.tokens == {found.token_id}
    with pytest.raises(Unauthorized):
        tokens.authenticate(token)


def test_an_expired_token_is_refused(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = Tokens(ledger, SECRET_KEY)
    token = tokens.create(TokenCreate(role=Role.AUDITOR, expires_in_days=1)).token
    tokens.authenticate(token)

    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz: object = None) -> Tomorrow:
            return cls.fromtimestamp(time.time() + 86_401, UTC)

    monkeypatch.setattr("terrine_server.owner.sign_in.datetime", Tomorrow)
    with pytest.raises(Unauthorized):
        tokens.authenticate(token)


def test_tokens_are_listed_page_by_page(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    times = [datetime(2026, 1, day, tzinfo=UTC) for day in (3, 2, 2, 2, 1)]
    monkeypatch.setattr("terrine_server.ledger.database.now", iter(times).__next__)
    for id in "edcba":
        create(ledger, id, Role.ADMIN, None)
    whole = ["a", "b", "c", "d", "e"]  # three of them were made at the same instant
    assert [token.id for token in ledger.tokens.list()] == whole
    for limit in (1, 2, 3, 6):
        listed: list[str] = []
        while page := ledger.tokens.list(after=listed[-1] if listed else None, limit=limit):
            assert len(page) <= limit
            listed += [token.id for token in page]
            assert len(listed) <= len(whole)
        assert listed == whole
    assert ledger.tokens.list(project="study") == []
    with refuses(NotFound, "f"):
        ledger.tokens.list(after="f")
