"""The role that serves on PostgreSQL can do all that the service does, and cannot touch history."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError

from support.databases import SECRET_KEY, as_owner
from support.ledgers import (
    CONFIDENT,
    COUNTED,
    PEOPLE,
    answered,
    charge_one,
    counted,
    digest,
    open_ledger,
    open_people,
    open_project,
    open_published,
    publishing_ledger,
    register,
    voted,
)
from support.processes import Terrine
from support.wording import holds, refuses
from terrine_protocol import ProjectStatus, Role
from terrine_server.doctor import check_database_rights
from terrine_server.errors import DatabaseUnavailable
from terrine_server.ledger import Ledger, NewToken, check_schema, connect, seal, upgrade
from terrine_server.ledger.definitions import schema_differences
from terrine_server.ledger.migrating import check_rights, grant

pytestmark = pytest.mark.parametrize("each_database_url", ["postgresql"], indirect=True)


@pytest.fixture
def service(each_database_url: str) -> Iterator[URL]:
    """A role with no rights yet, as a URL to log in with."""
    owner, role = connect(as_owner(each_database_url)), f"service-{secrets.token_hex(6)}"
    with owner.begin() as connection:
        connection.execute(text(f"CREATE ROLE \"{role}\" LOGIN PASSWORD 'service'"))
    yield make_url(each_database_url).set(username=role, password="service")
    with owner.begin() as connection:
        connection.execute(text(f'DROP OWNED BY "{role}"'))
        connection.execute(text(f'DROP ROLE "{role}"'))


@pytest.fixture
def restricted(service: URL) -> Iterator[Engine]:
    """Connections of that role."""
    engine = connect(service.render_as_string(hide_password=False))
    yield engine
    engine.dispose()


@pytest.fixture
def granted(each_database_url: str, service: URL, restricted: Engine) -> Ledger:
    """A ledger with an ensemble, as a server has it whose role `terrine init` gave its rights."""
    open_ledger(each_database_url)
    grant(connect(as_owner(each_database_url)), role_of(service))
    return Ledger(restricted, SECRET_KEY)


def role_of(service: URL) -> str:
    assert service.username is not None
    return service.username


def test_the_service_needs_no_more_rights_than_it_is_given(
    granted: Ledger, restricted: Engine
) -> None:
    ledger = granted
    check_schema(restricted)
    assert schema_differences(restricted) == []
    register(ledger, "second")
    project = open_project(ledger, 10, CONFIDENT, ensemble="second")
    batch = [answered(i) for i in range(5)]
    paid, again = (charge_one(ledger, project.id, batch) for _ in range(2))
    assert [r.seq for r in paid.results] == [r.seq for r in again.results]
    assert ledger.verifier.verify_project("study").ok
    assert len(list(ledger.exports.export_project("study"))) == 6
    token = ledger.tokens.create(
        NewToken(
            id="t",
            hash=digest("t"),
            role=Role.STUDENT,
            project="study",
            label="",
            expires_at=datetime.now(UTC) + timedelta(days=1),
        )
    )
    assert ledger.tokens.revoke(token.id).revoked_at is not None
    for status in (ProjectStatus.PAUSED, ProjectStatus.ACTIVE, ProjectStatus.CLOSED):
        assert ledger.projects.set_status("study", status).status is status
    assert ledger.verifier.verify_project("study").ok
    other = b"o" * 64
    assert seal(restricted, other, old_key=SECRET_KEY).projects == 1
    assert Ledger(restricted, other).verifier.verify_log().ok


def test_publishing_needs_no_more_rights_either(
    each_database_url: str, service: URL, restricted: Engine
) -> None:
    publishing_ledger(each_database_url)
    grant(connect(as_owner(each_database_url)), role_of(service))
    ledger = Ledger(restricted, SECRET_KEY)
    project = open_published(ledger)
    charge_one(ledger, project.id, voted(project, range(5)))
    assert ledger.projects.secret_spend("study").queries == 5
    assert ledger.verifier.verify_project("study").ok


def test_noisy_counts_need_no_more_rights_either(granted: Ledger) -> None:
    ledger = granted
    project = open_project(ledger, 10, COUNTED)
    batch = [counted(i) for i in range(5)]
    charge_one(ledger, project.id, batch)
    again = charge_one(ledger, project.id, [counted(i, "again") for i in range(5)]).results
    assert [result.counts for result in again] == [proposal.counts for proposal in batch]
    assert ledger.verifier.verify_project("study").ok


def test_people_who_vote_leave_and_are_restored_need_no_more_rights_either(
    each_database_url: str, service: URL, restricted: Engine
) -> None:
    opened = open_people(each_database_url)
    grant(connect(as_owner(each_database_url)), role_of(service))
    ledger = Ledger(restricted, SECRET_KEY)
    url = service.render_as_string(hide_password=False)
    people = replace(opened, url=url, ledger=ledger)
    inputs = [opened.people.input(person) for person in range(4)]
    people.ask(inputs[:1])
    people.ask(inputs[1:3])  # by then its shadows have accounts
    assert [each.replayed for each in people.ask(inputs[:1]).results] == [True]
    ledger.ensembles.make_edition("people", 2, "22" * 32, PEOPLE, [3])
    people.ask(inputs[3:])
    assert ledger.projects.get("study").charges == 4
    restored = ledger.projects.fill_accounts()
    assert (restored.paused, restored.filled) == (["study"], ["study"])
    assert ledger.verifier.verify_project("study").ok


def test_a_right_that_was_taken_away_is_told_as_what_it_is(
    each_database_url: str, service: URL, restricted: Engine
) -> None:
    """By the charge that fails, by readiness and by doctor: not that the ledger is out of reach."""
    opened = open_people(each_database_url)
    owner = connect(as_owner(each_database_url))
    grant(owner, role_of(service))
    check_rights(restricted)
    with owner.begin() as connection:
        revoke = f'REVOKE UPDATE ON shadow_accounts FROM "{role_of(service)}"'
        connection.execute(text(revoke))
    url = service.render_as_string(hide_password=False)
    people = replace(opened, url=url, ledger=Ledger(restricted, SECRET_KEY))
    people.ask([opened.people.input(1)])
    with refuses(DatabaseUnavailable, "shadow_accounts", "right", "--service-role"):
        people.ask([opened.people.input(2)])
    with refuses(DatabaseUnavailable, "UPDATE", "shadow_accounts", "--service-role"):
        check_rights(restricted)
    (found,) = check_database_rights(restricted)
    holds(found.found, "UPDATE", "shadow_accounts")
    assert people.ledger.projects.get("study").charges == 1


DENIED = (
    "UPDATE charges SET label = 1",
    "UPDATE charges SET counts = '[1]'",
    "DELETE FROM charges",
    "TRUNCATE charges",
    "ALTER TABLE charges DISABLE TRIGGER USER",
    "ALTER TABLE charges DROP CONSTRAINT ck_charges_price",
    "DROP TRIGGER charges_no_update ON charges",
    "CREATE OR REPLACE FUNCTION terrine_refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END'",
    "DROP TABLE charges",
    "SET session_replication_role = replica",
    "UPDATE projects SET budget = budget + 1",
    "UPDATE projects SET genesis = head",
    "DELETE FROM projects",
    "UPDATE populations SET cap = cap + 1",
    "DELETE FROM populations",
    "UPDATE ensembles SET population_id = population_id + 1",
    "DELETE FROM ensembles",
    "UPDATE tokens SET expires_at = now()",
    "DELETE FROM tokens",
    "UPDATE administrative_log SET actor = 'x'",
    "DELETE FROM administrative_log",
    "UPDATE payments SET token_id = 'x'",
    "DELETE FROM payments",
    "UPDATE alembic_version SET version_num = '9'",
    "CREATE TABLE more (id int)",
)


def test_the_service_cannot_touch_history(granted: Ledger, restricted: Engine) -> None:
    charge_one(granted, open_project(granted, 5).id, [answered(1)])
    for statement in DENIED:
        with (
            pytest.raises(DBAPIError, match=r"permission|owner"),
            restricted.begin() as connection,
        ):
            connection.execute(text(statement))
    assert granted.verifier.verify_project("study").ok


def test_granting_again_takes_back_what_was_added(
    granted: Ledger, each_database_url: str, service: URL, restricted: Engine
) -> None:
    owner = connect(as_owner(each_database_url))
    with owner.begin() as connection:
        connection.execute(text(f'GRANT ALL ON charges TO "{role_of(service)}"'))
    (said,) = check_database_rights(restricted)
    assert (said.check, said.state) == ("rights", "warning")
    holds(said.found, "UPDATE", "DELETE", "TRUNCATE", "TRIGGER", "charges")
    grant(owner, role_of(service))
    (said,) = check_database_rights(restricted)
    assert said.state == "ok"


def test_the_doctor_says_which_rights_are_missing(
    each_database_url: str, service: URL, restricted: Engine
) -> None:
    assert list(check_database_rights(restricted)) == [], "there are no tables yet"
    open_ledger(each_database_url)
    (said,) = check_database_rights(restricted)
    assert said.state == "problem"
    holds(said.found, "SELECT", "charges")
    holds(said.fix, "--service-role", role_of(service))
    (said,) = check_database_rights(connect(as_owner(each_database_url)))
    assert said.state == "warning", "the owner may do anything"


def test_the_service_sees_what_the_tables_lack(
    granted: Ledger, each_database_url: str, restricted: Engine
) -> None:
    owner = connect(as_owner(each_database_url))
    with owner.begin() as connection:
        connection.execute(text("DROP TRIGGER charges_no_delete ON charges"))
        connection.execute(text("ALTER TABLE charges DROP CONSTRAINT ck_charges_price"))
        connection.execute(text("DROP INDEX uq_charges_answered_input"))
    assert [str(each) for each in schema_differences(restricted)] == [
        "missing: check ck_charges_price of charges",
        "missing: unique index uq_charges_answered_input of charges",
        "missing: trigger charges_no_delete of charges",
    ]
    with pytest.raises(DatabaseUnavailable, match=r"may not|permission|owner"):
        upgrade(restricted, SECRET_KEY)  # only the owner of the tables may restore them


def test_init_grants_the_rights(
    each_database_url: str, service: URL, restricted: Engine, terrine: Terrine
) -> None:
    variables = {"TERRINE_DATABASE_URL": as_owner(each_database_url)}
    assert terrine("init", "--service-role", role_of(service), **variables).code == 0
    (said,) = check_database_rights(restricted)
    assert said.state == "ok"
    unknown = terrine("init", "--service-role", "nobody", **variables).refused
    holds(unknown, "ROLE", "nobody")
    holds(terrine("init", "--service-role", "nobody").refused, "SQLite", "roles")
