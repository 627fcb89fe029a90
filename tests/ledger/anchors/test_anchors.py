"""An anchor that was kept elsewhere tells what no look at the books alone can tell."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from anchoring import ENTRIES, anchored, ask, terrine
from books import CONFIDENT, EPOCHS, answered, open_ledger, open_project, reseal, unguarded
from forging import account, cut, kind, rebuild, remove, rewrite, rows_of, write
from migrated import SECRET_KEY
from publishing import open_published, publishing_ledger, voted
from sqlalchemy import Connection, delete, update

from terrine_protocol import ProjectStatus
from terrine_server.errors import BudgetExhausted
from terrine_server.ledger import Ledger
from terrine_server.ledger.anchors import (
    Anchor,
)
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.store.tables import ensembles, projects
from terrine_server.ledger.verifying.walk import verify_project


def test_an_anchor_holds_while_the_ledger_grows(ledger: Ledger) -> None:
    anchor = anchored(ledger)
    for resume in (False, True):
        assert ledger.verify("study", anchor, resume).ok
    ask(ledger, *range(100, 105))
    for resume, vouched in ((False, 0), (True, ENTRIES)):
        found = ledger.verify("study", anchor, resume)
        assert found.ok, found.problems
        assert (found.charges, found.vouched) == (ENTRIES + 5, vouched)
        assert found.anchor == replaced(anchored(ledger), found.anchor)


def replaced(anchor: Anchor, other: Anchor | None) -> Anchor:
    """The anchor as if it were made when the other was."""
    assert other is not None
    return Anchor(**{**vars(anchor), "made_at": other.made_at})


REWRITTEN: dict[str, tuple[Callable[[Connection], object], str]] = {
    "cut tail with balances to match": (lambda c: cut(c, 4), "anchor: entry 6, there at "),
    "all cut but the first": (lambda c: cut(c, 1), "anchor: entry 6, there at "),
    "label altered, chain rewritten": (
        lambda c: rewrite(c, 3, label=9),
        "anchor: entry 6 is not the one of ",
    ),
    "swapped, chain rewritten": (
        lambda c: rebuild(c, [rows_of(c)[i] for i in (0, 2, 1, 3, 4, 5)]),
        "anchor: entry 6 is not the one of ",
    ),
    "last label altered, chain rewritten": (
        lambda c: rewrite(c, 6, label=9),
        "anchor: entry 6 is not the one of ",
    ),
}


def test_books_that_are_consistent_and_wrong_are_found(ledger: Ledger, database_url: str) -> None:
    anchor, seals = anchored(ledger), Seals(SECRET_KEY)
    with unguarded(database_url) as forger:
        forger.commit()
        for forgery, (forge, first_finding) in REWRITTEN.items():
            forge(forger)
            reseal(forger)
            assert verify_project(forger, seals, "study").ok, "without an anchor nobody can tell"
            for resume in (False, True):
                problems = verify_project(forger, seals, "study", anchor, resume).problems
                assert problems, forgery
                assert problems[0].startswith(first_finding), problems
            forger.rollback()


def test_a_cut_tail_is_found_even_when_new_charges_took_its_place(
    ledger: Ledger, database_url: str
) -> None:
    anchor = anchored(ledger)
    with unguarded(database_url) as connection:
        cut(connection, 4)
    ask(ledger, *range(100, 110))
    assert ledger.verify("study").ok
    for resume in (False, True):
        problems = ledger.verify("study", anchor, resume).problems
        assert "entry 6" in problems[0]


def test_a_closed_project_that_is_open_again_is_found(ledger: Ledger, database_url: str) -> None:
    ledger.set_status("study", ProjectStatus.CLOSED)
    anchor = anchored(ledger)
    with unguarded(database_url) as connection:
        account(status="active", closed_at=None)(connection)
    problems = ledger.verify("study", anchor).problems
    assert kind(problems[0]) == "anchor: it"
    assert problems[0].endswith("active now")


def test_a_project_that_was_opened_anew_under_its_name_is_found(
    ledger: Ledger, database_url: str
) -> None:
    anchor = anchored(ledger)
    with unguarded(database_url) as connection:
        remove(connection, *range(1, ENTRIES + 1))
        connection.execute(delete(projects))
        connection.execute(update(ensembles).values(reserved=0, delta_reserved=0))
    project = open_project(ledger, 20, CONFIDENT)
    ledger.charge(project.id, [answered(i, i) for i in range(ENTRIES)])
    assert ledger.verify("study").ok
    problems = ledger.verify("study", anchor).problems
    assert kind(problems[0]) == "anchor: the"
    assert any("entry 6 is not the one of" in problem for problem in problems)


# -------------------------------------------------------------------------- going on


def test_going_on_from_an_anchor_reads_only_what_came_after_it(
    ledger: Ledger, database_url: str
) -> None:
    anchor = anchored(ledger)
    ask(ledger, *range(100, 105))
    seen: list[tuple[int, int]] = []
    ledger.verify("study", anchor, resume=True, progress=lambda *counted: seen.append(counted))
    assert seen == [(11, 11)]
    with unguarded(database_url) as connection:
        write(connection, 2, {"label": 9})
        connection.commit()
        assert ledger.verify("study", anchor, resume=True).ok, "that is what its word is for"
        assert not ledger.verify("study", anchor).ok
        write(connection, 9, {"label": 9})
        connection.commit()
        [problem] = ledger.verify("study", anchor, resume=True).problems
        assert kind(problem) == "entry 9: altered"


def test_going_on_from_any_entry_comes_to_the_same_account(
    ledger: Ledger, database_url: str
) -> None:
    whole = [anchored(ledger)]
    for query in range(100, 108):
        ask(ledger, query)
        whole.append(anchored(ledger))
    for anchor in whole:
        resumed = ledger.verify("study", anchor, resume=True)
        assert resumed.ok, resumed.problems
        assert resumed.anchor == replaced(whole[-1], resumed.anchor)


def test_going_on_follows_published_figures(database_url: str) -> None:
    """The account of a data-dependent project depends on when and what it published."""
    ledger = publishing_ledger(database_url)
    project = open_published(ledger)
    schedule = project.terms.schedule
    assert schedule is not None
    whole = [anchored(ledger)]
    step = max(1, schedule.counts[0] // 3)
    for start in range(0, schedule.counts[1] + step, step):
        with suppress(BudgetExhausted):  # figures are random, and may leave no room
            ledger.charge(project.id, voted(project, [f"{start} {i}" for i in range(step)]))
        whole.append(anchored(ledger))
    assert whole[-1].account.published >= 1
    for anchor in whole:
        resumed = ledger.verify("study", anchor, resume=True)
        assert resumed.ok, resumed.problems
        assert resumed.anchor == replaced(whole[-1], resumed.anchor)


def test_going_on_follows_epochs(database_url: str) -> None:
    ledger = open_ledger(database_url)
    project = open_project(ledger, 6, EPOCHS)
    whole = [anchored(ledger)]
    for request in range(4):
        ledger.charge(project.id, [answered(f"{request} {k}", epoch=0) for k in range(2)])
        whole.append(anchored(ledger))
    for anchor in whole:
        resumed = ledger.verify("study", anchor, resume=True)
        assert resumed.ok, resumed.problems
        assert resumed.anchor == replaced(whole[-1], resumed.anchor)


def test_an_anchor_that_lies_about_the_account_is_found(ledger: Ledger) -> None:
    anchor = anchored(ledger)
    ask(ledger, 100)
    for name in ("spent", "delta_spent", "cap_spent"):
        account = type(anchor.account)(
            **{**vars(anchor.account), name: getattr(anchor.account, name) - 1}
        )
        lying = Anchor(**{**vars(anchor), "account": account})
        problems = ledger.verify("study", lying, resume=True).problems
        assert problems == [
            f"balance: {name} is {getattr(ledger.project('study'), name)}, "
            f"but the entries make {getattr(ledger.project('study'), name) - 1}"
        ]


def test_the_end_of_the_administrative_log_is_anchored_too(ledger: Ledger, tmp_path: Path) -> None:
    file = tmp_path / "anchor.json"
    assert terrine("anchor", "--output", file).exit_code == 0
    ledger.set_status("study", ProjectStatus.PAUSED)
    assert terrine("verify", "--anchor", file).exit_code == 0, "it may grow"
    document = json.loads(file.read_text())
    changes: list[tuple[dict[str, object], str]] = [
        ({"head": "00" * 32}, f"anchor: log entry {document['log']['entries']} is not the one"),
        ({"entries": 99}, "anchor: log entry 99, there at"),
    ]
    for change, said in changes:
        file.write_text(json.dumps({**document, "log": {**document["log"], **change}}))
        found = terrine("verify", "--anchor", file)
        assert found.exit_code == 1
        assert said in found.output
    del document["log"]
    file.write_text(json.dumps(document))
    assert terrine("verify", "--anchor", file).exit_code == 0, "as earlier versions wrote it"
