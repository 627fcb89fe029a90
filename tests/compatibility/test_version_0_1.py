"""What an earlier version wrote and sent is still written and sent, byte for byte.

`tests/fixtures/version-0.1` holds a ledger of that version with a project of every mechanism, the
exports of its books, replies of its API, and what it charged and reserved for a grid of terms.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from books import digest
from typer.testing import CliRunner

from terrine_protocol import Role, TokenCreate
from terrine_server import views
from terrine_server.app import create_app
from terrine_server.cli.ledger import app as commands
from terrine_server.ledger import Ledger, QueryDigest, Receipt, connect, seal, upgrade
from terrine_server.ledger.verifying.walk import verify_export
from terrine_server.owner.tokens import Tokens
from terrine_server.privacy import ParameterError, build_mechanism, cap, quote
from terrine_server.settings import Settings

BEFORE = Path(__file__).resolve().parents[1] / "fixtures" / "version-0.1"
PROJECTS = sorted(file.stem for file in BEFORE.glob("*.jsonl"))
KEY = b"k" * 64
LABELLED = [name for name in PROJECTS if name != "published"]


def read(name: str) -> Any:
    return json.loads((BEFORE / name).read_text(encoding="utf-8"))


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A data directory with the earlier version's ledger, after `terrine init` of this one and
    `terrine ledger seal`."""
    shutil.copyfile(BEFORE / "ledger.db", tmp_path / "terrine.sqlite")
    (tmp_path / "secret.key").write_bytes(KEY)
    (tmp_path / "secret.key").chmod(0o600)
    monkeypatch.setenv("TERRINE_DATA_DIR", str(tmp_path))
    made = Settings()
    engine = connect(made.database, None)
    upgrade(engine, KEY)
    seal(engine, KEY)
    return made


@pytest.fixture
def ledger(settings: Settings) -> Ledger:
    return Ledger(connect(settings.database, None), KEY)


def test_there_is_a_project_of_every_mechanism_that_it_had(ledger: Ledger) -> None:
    from terrine_server.privacy.mechanisms import MECHANISMS

    later = {"noisy_votes"}
    found = {ledger.project(name).mechanism["name"] for name in PROJECTS}
    assert found == set(MECHANISMS) - later
    assert ledger.project_names() == PROJECTS


@pytest.mark.parametrize("project", PROJECTS)
def test_its_books_verify_and_export_as_they_did(
    project: str, ledger: Ledger, tmp_path: Path
) -> None:
    assert ledger.verify(project).problems == []
    written = tmp_path / "export.jsonl"
    done = CliRunner().invoke(commands, ["export", project, "--output", str(written)])
    assert done.exit_code == 0, done.output
    assert written.read_bytes() == (BEFORE / f"{project}.jsonl").read_bytes()


@pytest.mark.parametrize("project", PROJECTS)
def test_its_exports_verify_without_their_database(project: str) -> None:
    found = verify_export(BEFORE / f"{project}.jsonl", {})
    assert found.problems == []
    assert found.charges > 0


async def test_its_api_answers_as_it_did(settings: Settings, ledger: Ledger) -> None:
    tokens = Tokens(ledger, KEY)
    bearer = {"admin": tokens.create(TokenCreate(role=Role.ADMIN)).token}
    for name in PROJECTS:
        request = TokenCreate(role=Role.STUDENT, project=name)
        bearer[name] = tokens.create(request).token
    transport = httpx.ASGITransport(app=create_app(settings))
    async with httpx.AsyncClient(transport=transport, base_url="http://terrine") as client:
        for before in read("wire.json")["replies"]:
            headers = {"Authorization": f"Bearer {bearer[before['token']]}"}
            if "accept" in before:
                headers["Accept"] = before["accept"]
            reply = await client.request(
                before["method"], before["path"], json=before["json"], headers=headers
            )
            assert (reply.status_code, reply.text) == (before["status"], before["reply"])


def asked(project: str) -> list[QueryDigest]:
    """The queries of the request with the key "monday"."""
    match project:
        case "interactive":
            pairs = [("i1", "g1"), ("i2", "ini2"), ("i3", "ini3")]
        case "epochs":
            pairs = [(name, name) for name in "abcd"]
        case _:
            count = 7 if project in ("confident", "stable") else 5
            pairs = [(f"{project}{i}", f"{project}{i}") for i in range(count)]
    return [QueryDigest(digest(query), digest(given)) for query, given in pairs]


@pytest.mark.parametrize("project", LABELLED)
def test_a_retry_gets_the_reply_that_it_got(project: str, ledger: Ledger) -> None:
    (receipt,) = ledger.consult(project, [("monday", digest("monday"))], [asked(project)]).answers
    assert isinstance(receipt, Receipt)
    assert views.answers(receipt).decode() == read("wire.json")["labels"][project]


def test_terms_and_events_of_new_projects_are_as_they_were() -> None:
    for before in read("prices.json"):
        size = {"teachers": before["teachers"], "classes": before["classes"]}
        budget, rule = (before["epsilon"], before["delta"]), cap(8.0, 1e-5, before["order"]).rule
        if "refused" in before:
            with pytest.raises(ParameterError):
                quote(build_mechanism(before["spec"], **size), *budget, cap_rule=rule)
            continue
        mechanism = build_mechanism(before["spec"], **size)
        terms = quote(mechanism, *budget, cap_rule=rule).to_json()
        assert json.loads(json.dumps(terms)) == before["terms"]
        events = {str(outcome): event.to_json() for outcome, event in mechanism.events().items()}
        assert json.loads(json.dumps(events)) == before["events"]


def test_caps_of_new_ensembles_are_as_they_were() -> None:
    for epsilon, delta, order, budget, delta_budget in read("caps.json"):
        found = cap(epsilon, delta, order)
        assert (found.budget, found.delta_budget) == (budget, delta_budget)
