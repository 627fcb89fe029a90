"""What two servers vote on at a time: an aggregator counts each query that any of them puts to
it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from addons.federation.owners import choices, shared_federation, sharing_owners
from support import processes
from support.data import DigitsEnsemble
from support.databases import POSTGRESQL_BY_DAY, SECRET_KEY, migrated
from support.processes import at_once, until
from support.wording import refuses
from support.workers import take_turn
from terrine_addons.federation.aggregator import SERVICE, Aggregator
from terrine_addons.federation.federations import save_federation
from terrine_addons.federation.voters import AggregatorTerms, SharedVoters
from terrine_models.teachers.ensemble import Ensemble
from terrine_protocol import EnsembleRegister, ProjectOpen
from terrine_server.errors import DatabaseUnavailable
from terrine_server.labeling.pipeline import Labeling
from terrine_server.ledger import ChargedBatch, Ledger, connect, database
from terrine_server.metrics import Metrics
from terrine_server.owner.operations import open_project, register_ensemble
from terrine_server.settings import Settings

NAMES, SIGMA = tuple(f"owner-{i}" for i in range(20)), 12.0
TERMS = {"owners": NAMES, "classes": 10, "sigma": SIGMA, "epsilon": 20, "delta": 1e-6}


@pytest.fixture
def aggregator_and_service(
    tmp_path: Path, database_url: str, digits_ensemble: DigitsEnsemble
) -> Iterator[tuple[Aggregator, Settings]]:
    """An aggregator that counts, and a data directory with its ensemble and a project, "shares"."""
    digits = Ensemble.load(digits_ensemble.directory, device="cpu")
    settings = Settings(data_dir=tmp_path / "data", database_url=database_url)
    ward = settings.ensembles_dir / "ward"
    ward.mkdir(parents=True)
    settings.secret_key_path.write_bytes(SECRET_KEY)
    settings.secret_key_path.chmod(0o600)
    with sharing_owners(
        lambda x: choices(digits, x),
        digits.manifest.input,
        AggregatorTerms.model_validate(TERMS),
        tmp_path / "party",
    ) as (owners, aggregator):
        federation = shared_federation(owners, digits.manifest.input, len(NAMES))
        save_federation(ward, federation)
        (ward / "aggregator.token").write_bytes((aggregator.directory / SERVICE).read_bytes())
        ledger = Ledger(migrated(database_url), SECRET_KEY)
        register_ensemble(ledger, settings, EnsembleRegister(name="ward", epsilon=20.0, delta=1e-6))
        terms = {
            "name": "shares",
            "ensemble": "ward",
            "epsilon": 10.0,
            "delta": 1e-7,
            "mechanism": {"name": "noisy_votes", "sigma": 12.0},
        }
        open_project(ledger, ProjectOpen.model_validate(terms))
        yield aggregator, settings


@POSTGRESQL_BY_DAY
@pytest.mark.usefixtures("each_database_url")
def test_a_aggregator_counts_what_the_ledger_charges_however_many_servers_ask_the_same(
    aggregator_and_service: tuple[Aggregator, Settings], digits_ensemble: DigitsEnsemble
) -> None:
    aggregator, settings = aggregator_and_service
    copies, servers = 8, 2
    with ExitStack() as stack:
        replicas = []
        for _ in range(servers):  # nothing in memory is common to them
            engine = connect(settings.database)
            stack.callback(engine.dispose)
            voters = SharedVoters(settings.data_dir)
            stack.callback(voters.close)
            replicas.append(Labeling(Ledger(engine, SECRET_KEY), voters, Metrics(), 4096))

        def ask(client: int) -> list[int | None]:
            service = replicas[client % servers]
            asked = service.check("shares", digits_ensemble.public[:3])
            (receipt,) = service.answer("shares", [asked])
            assert isinstance(receipt, ChargedBatch)
            return [result.label for result in receipt.results]

        answers = at_once(copies * servers, ask)
        assert all(answer == answers[0] for answer in answers)

        def ask_another(client: int) -> None:
            service = replicas[client % servers]
            asked = service.check("shares", digits_ensemble.public[3 + client : 4 + client])
            service.answer("shares", [asked])

        at_once(6, ask_another)
        ledger = Ledger(connect(settings.database), SECRET_KEY)
        charges = ledger.project("shares").charges
        assert charges == 3 + 6
        assert aggregator.count.released == charges
        assert ledger.verify("shares").ok


@pytest.mark.usefixtures("each_database_url")
def test_a_turn_ends_with_its_process_and_is_of_one_project(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrated(database_url).dispose()
    taken = tmp_path / "taken"
    process = processes.start(take_turn, database_url, 7, str(taken))
    until(taken.exists)
    patient = connect(database_url)
    with database.project_lock(patient, 8):
        pass
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.3)
    engine = connect(database_url, statement_seconds=0.3)
    with refuses(DatabaseUnavailable, "busy"), database.project_lock(engine, 7):
        raise AssertionError("two have it")
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    monkeypatch.setattr(database, "BUSY_SECONDS", 30)
    with database.project_lock(patient, 7):
        pass
    with refuses(ValueError, "within"), database.project_lock(patient, 7):
        raise ValueError("within")
    with database.project_lock(patient, 7):
        pass
    for each in (engine, patient):
        each.dispose()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_turn_that_cannot_be_given_back_does_not_undo_what_was_charged(database_url: str) -> None:
    """The connection that holds it is cut while it is held: the block ends as if nothing was."""
    engine, other = connect(database_url), connect(database_url)
    migrated(database_url).dispose()
    with database.project_lock(engine, 7), other.begin() as connection:
        cut = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
        connection.exec_driver_sql(cut)
    with database.project_lock(other, 7):
        pass
    engine.dispose()
    other.dispose()
