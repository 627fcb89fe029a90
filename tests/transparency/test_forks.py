"""An owner who tells two histories is found out: by a witness, by a student, by two students."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Connection, select, update

from support.databases import SECRET_KEY
from support.forgeries import cut, rebuild, rewrite, rows_of
from support.ledgers import NOISY, answered, charge_one, open_ledger, open_project, unguarded
from support.processes import until
from support.servers import LOG, RunningWitness, log_settings, policy_of, policy_text
from support.wording import holds
from terrine_client import Client
from terrine_protocol import LabelResponse, LabelResult, Outcome, Role, TokenCreate
from terrine_protocol.transparency import Checkpoint, Note
from terrine_server import views
from terrine_server.app import serving
from terrine_server.ledger import Ledger, connect, upgrade
from terrine_server.ledger.schema import projects, tree_head, tree_leaves, tree_nodes
from terrine_server.ledger.seals import Seals
from terrine_server.owner.checkpoints import log_state
from terrine_server.owner.sign_in import Tokens
from terrine_server.settings import Settings

pytestmark = pytest.mark.slow

ENTRIES = 12


@dataclass(frozen=True)
class Owner:
    """A data owner with a ledger of a dozen entries, and a student's token."""

    database_url: str
    settings: Settings
    ledger: Ledger
    token: str

    def charge(self, *queries: object) -> LabelResponse:
        """Answer queries; return what the service would say of them."""
        project = self.ledger.projects.get("study")
        receipt = charge_one(self.ledger, project.id, [answered(query) for query in queries])
        results = [
            LabelResult(outcome=Outcome.ANSWERED, label=r.label, charge=r.seq, hash=r.hash)
            for r in receipt.results
        ]
        return LabelResponse(results=results, budget=views.budget(receipt.project))

    @contextmanager
    def serving(self) -> Iterator[str]:
        with serving(self.settings) as url:
            yield url


@pytest.fixture
def owner(database_url: str, tmp_path: Path, witness: RunningWitness) -> Iterator[Owner]:
    settings = log_settings(tmp_path, database_url, witness)
    ledger = open_ledger(database_url)
    open_project(ledger, 200, NOISY)
    tokens = Tokens(ledger, SECRET_KEY)
    token = tokens.create(TokenCreate(role=Role.STUDENT, project="study")).token
    yield Owner(database_url, settings, ledger, token)
    ledger._access.engine.dispose()


@contextmanager
def forging(owner: Owner) -> Iterator[Connection]:
    """Rewrite the ledger with all keys, and grow another tree over it, under the same leaf keys.

    What the service itself remembers of the tree before is removed, too.
    """
    with unguarded(owner.database_url, with_key=False) as connection:
        yield connection
        row = connection.execute(select(projects)).one()._mapping
        seal = Seals(SECRET_KEY).of("projects", row)
        connection.execute(update(projects).values(seal=seal))
        connection.execute(tree_leaves.delete())
        connection.execute(tree_nodes.delete())
        connection.execute(update(tree_head).values(checkpoint=None))
    owner.settings.signed_checkpoint_path.unlink(missing_ok=True)
    engine = connect(owner.database_url)
    upgrade(engine, SECRET_KEY)  # the triggers are as they were, too
    engine.dispose()


def drop(connection: Connection) -> None:
    entries = rows_of(connection)
    rebuild(connection, entries[:4] + entries[5:])
    gone = entries[4]
    balance = {
        name: projects.c[name] - gone[price]
        for name, price in (("spent", "cost"), ("delta_spent", "delta"), ("cap_spent", "cap_cost"))
    }
    connection.execute(update(projects).values(charges=len(entries) - 1, **balance))


def reorder(connection: Connection) -> None:
    entries = rows_of(connection)
    rebuild(connection, [*entries[:4], entries[5], entries[4], *entries[6:]])


def back_date(connection: Connection) -> None:
    day_before = rows_of(connection)[5]["created_at"] - timedelta(days=1)
    rewrite(connection, 6, created_at=day_before)


def tell_another_label(connection: Connection) -> None:
    rewrite(connection, 3, label=rows_of(connection)[2]["label"] ^ 1)


def roll_back(connection: Connection) -> None:
    cut(connection, 6)


FORGERIES: dict[str, tuple[Callable[[Connection], object], list[int]]] = {
    "drops an entry": (drop, list(range(5, ENTRIES + 1))),
    "reorders entries": (reorder, list(range(5, ENTRIES + 1))),
    "back-dates an entry": (back_date, list(range(6, ENTRIES + 1))),
    "tells another label": (tell_another_label, list(range(3, ENTRIES + 1))),
    "rolls back": (roll_back, list(range(7, ENTRIES + 1))),
}
"""What an owner does, and the entries that are not those that were told any more."""


def logged(url: str, size: int) -> Checkpoint | None:
    """The checkpoint that is served, if it has so many leaves."""
    response = httpx.get(f"{url}/checkpoint")
    if response.status_code != 200:
        return None
    found = Checkpoint.parse(Note.parse(response.text).text)
    return found if found.size == size else None


def log_entries(owner: Owner) -> int:
    return len(owner.ledger.log.list(0, 1000))


BY_NIGHT = {"reorders entries", "back-dates an entry"}
"""Others rebuild and rewrite the chain by day, too."""


@pytest.mark.parametrize(
    "forgery",
    [
        pytest.param(forgery, marks=[pytest.mark.nightly] if forgery in BY_NIGHT else [])
        for forgery in FORGERIES
    ],
)
def test_another_history_is_found_by_a_witness_by_a_student_and_by_two(
    forgery: str, owner: Owner, witness: RunningWitness
) -> None:
    forge, lost = FORGERIES[forgery]
    witnessed, alone = policy_text(witness).encode(), policy_text().encode()
    told = owner.charge(*range(ENTRIES))
    with owner.serving() as url, Client(url, owner.token) as student:
        student.receipts.keep(told)
        report = until(lambda: student.verify_receipts(witnessed), lambda r: bool(r.proofs))
        assert report.ok, str(report)
        assert report.proofs.keys() == set(range(1, ENTRIES + 1))
        kept, seen = student.receipts, student.receipts.checkpoint
        assert seen is not None
    before = witness.witness.last(LOG.verifier)
    size = ENTRIES + log_entries(owner)
    assert before == Checkpoint.parse(Note.parse(seen).text)
    assert before.size == size

    with forging(owner) as connection:
        forge(connection)
    assert owner.ledger.verifier.verify_project("study").ok, "the books alone look right"

    with owner.serving() as url, Client(url, owner.token) as student:
        after = owner.ledger.projects.get("study").charges + log_entries(owner)
        until(lambda: logged(url, after))
        # The witness: it does not cosign, and everybody sees that it does not.
        state = log_state(owner.ledger.tree.checkpoint(), policy_of(witness))
        assert state is not None
        assert state.missing == [witness.name]
        assert witness.witness.last(LOG.verifier) == before
        student.receipts = kept
        report = student.verify_receipts(witnessed)
        assert report.checkpoint is None
        holds(str(report), "trusted")
        # The student alone, who believes the log's signature: by the checkpoint of before.
        report = student.verify_receipts(alone)
        assert not report.ok
        holds(str(report), "HISTORIES")
        assert [*report.missing, *report.waiting] == lost
        assert student.receipts.checkpoint == seen
        # Another student, who has seen nothing before, by the checkpoint of the first.
        with Client(url, owner.token) as other:
            assert other.verify_receipts(alone).ok
            report = other.verify_receipts(alone, others=[seen])
            holds(str(report), "HISTORIES")
            shown = other.receipts.checkpoint
            assert shown is not None
        # And the other way round, when the honest history is served again, or goes on.
    with owner.serving() as url, Client(url, owner.token) as student:
        owner.charge("more", "and more", *(f"later {n}" for n in range(10)))
        after = owner.ledger.projects.get("study").charges + log_entries(owner)
        until(lambda: logged(url, after))
        holds(str(student.verify_receipts(alone, others=[seen])), "HISTORIES")
        assert student.verify_receipts(alone, others=[shown]).ok
        assert witness.witness.last(LOG.verifier) == before


def test_two_hashes_for_one_entry_are_found(owner: Owner) -> None:
    with Client("http://127.0.0.1:9", owner.token) as student:
        told = owner.charge(1)
        student.receipts.keep(told)
        other = told.results[0].model_copy(update={"hash": "00" * 32})
        student.receipts.keep(told.model_copy(update={"results": [other]}))
        assert student.receipts.contradicted == {1}
