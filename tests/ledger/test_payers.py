"""The ledger says which token paid for which entry: to the data owner alone, and for good."""

from __future__ import annotations

import json

import pytest

from support.clients import Caller
from support.ledgers import (
    answered,
    charge_one,
    open_ledger,
    open_project,
    open_published,
    published_terms,
    publishing_ledger,
    voted,
)
from support.processes import Terrine
from support.servers import RunningServer
from support.wording import holds, says

ANNE, BEN, CLAIRE = "a" * 16, "b" * 16, "c" * 16


def test_each_request_of_a_group_pays_for_what_it_asked_first(each_database_url: str) -> None:
    ledger = open_ledger(each_database_url)
    study = open_project(ledger, queries=6)
    ledger.charging.charge(
        study.id,
        [
            [answered(0), answered(1), answered(0)],
            [answered(1)],
            [answered(1), answered(2), answered(3)],
        ],
        payers=[ANNE, BEN, CLAIRE],
    )
    ledger.charging.charge(study.id, [[answered(2), answered(4)]], payers=[BEN])
    charge_one(ledger, study.id, [answered(5)])
    ledger.charging.charge(study.id, [[answered("more")], [answered(0)]], payers=[ANNE, BEN])
    assert ledger.entries.payers("study", range(1, 9)) == {
        1: ANNE,
        2: ANNE,
        3: CLAIRE,
        4: CLAIRE,
        5: BEN,
    }, "a replay pays nothing, nor does what was refused"
    assert ledger.verifier.verify_project("study").ok
    assert ledger.verifier.verify_log().ok


def test_a_figure_that_is_published_meanwhile_is_within_a_payment(each_database_url: str) -> None:
    ledger = publishing_ledger(each_database_url)
    secret, schedule = open_published(ledger), published_terms().schedule
    assert schedule is not None
    first = schedule.counts[0]
    ledger.charging.charge(secret.id, [voted(secret, range(first + 1))], payers=[ANNE])
    ledger.charging.charge(secret.id, [voted(secret, ["later"])], payers=[BEN])
    last = ledger.projects.get("study").charges
    assert last == first + 3
    assert ledger.entries.payers("study", [1, first, last - 1, last]) == {
        1: ANNE,
        first: ANNE,
        last - 1: ANNE,
        last: BEN,
    }
    assert ledger.verifier.verify_project("study").ok


class Asked:
    """A server whose `study` Anne asked first, then Ben: for one that she had, and two others."""

    def __init__(self, server: RunningServer) -> None:
        self.ledger = server.ledger
        server.open_project("study", epsilon=20.0)
        self.anne, self.ben = (server.token(label=label) for label in ("anne", "ben"))
        for token, inputs in ((self.anne, slice(0, 3)), (self.ben, slice(2, 5))):
            asked = Caller(server, token).label(server.ensemble.public[inputs])
            assert asked.status_code == 200, asked.text
        self.others = [server.token(role) for role in ("auditor", "admin")]
        self.server = server


@pytest.fixture
def asked(terrine_server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> Asked:
    settings = terrine_server.settings
    monkeypatch.setenv("TERRINE_DATABASE_URL", settings.database)
    monkeypatch.setenv("TERRINE_SECRET_KEY_FILE", str(settings.secret_key_path))
    return Asked(terrine_server)


@pytest.mark.usefixtures("each_database_url")
def test_the_owner_asks_who_paid_for_some_entries(asked: Asked, terrine: Terrine) -> None:
    anne, ben = (token.split("_")[1] for token in (asked.anne, asked.ben))
    said = terrine("ledger", "show", "study", "3-4", "--payers").fine.splitlines()
    holds(said, 3, anne, "anne")
    holds(said, 4, ben, "ben")
    assert not says(said, 2)
    assert not says(said, 5)
    found = json.loads(terrine("--json", "ledger", "show", "study", "--payers").fine)
    assert [(each["charge"], each["label"]) for each in found] == [
        *((number, "anne") for number in (1, 2, 3)),
        *((number, "ben") for number in (4, 5)),
    ]
    holds(terrine("ledger", "show", "study", "9", "--payers").fine, "None")
    for wrong in ("0", "4-3", "1-1001", "-1", "two"):
        holds(terrine("ledger", "show", "--payers", "study", "--", wrong).refused, "12-14")
    holds(terrine("ledger", "show", "--payers").refused, "--payers", "project:")
    holds(terrine("ledger", "show", "study", "3", "--last", 2).refused, "--last", "both.")
    shown = json.loads(terrine("--json", "ledger", "show", "study", "3-4").fine)
    assert [each["seq"] for each in shown["last_charges"]] == [3, 4]
    holds(terrine("ledger", "show", "nobody", "--payers").refused, "nobody")


def test_neither_students_nor_auditors_nor_exports_say_who_paid(
    asked: Asked, terrine: Terrine
) -> None:
    anne = asked.anne.split("_")[1]
    told = [terrine("ledger", "export", "study").fine, terrine("ledger", "show", "study").fine]
    for token in (asked.ben, *asked.others):
        caller = Caller(asked.server, token)
        for path in ("/budget", "/project", "/ledger/study", "/ledger", "/projects", "/receipts"):
            told.append(caller.http.get(path).text)
        told.append(caller.http.get("/ledger/study", headers={"Accept": "text/csv"}).text)
    assert any("query_digest" in each for each in told)
    assert not [each for each in told if anne in each]
