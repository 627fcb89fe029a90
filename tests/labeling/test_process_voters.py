"""Votes in processes of their own: the same counts, whatever happens to a process."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from digits import DigitsEnsemble
from server import installed
from serving import until

from terrine_models.data import DIGITS, Dataset
from terrine_models.teachers import Networks, train_ensemble
from terrine_protocol import ProjectOpen
from terrine_server.errors import EnsembleUnavailable
from terrine_server.labeling import process_voters
from terrine_server.labeling.local_voters import LocalVoters
from terrine_server.labeling.pipeline import Labeling
from terrine_server.labeling.process_voters import ProcessVoters
from terrine_server.ledger import EnsembleRecord, Ledger
from terrine_server.metrics import Metrics
from terrine_server.owner.operations import open_project, register_ensemble
from terrine_server.settings import Settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
BLOCK = 32
"""Inputs that a process votes on at a time."""


class House(NamedTuple):
    settings: Settings
    ledger: Ledger
    voters: ProcessVoters
    threads: LocalVoters
    inputs: np.ndarray

    @property
    def digits(self) -> EnsembleRecord:
        return self.ledger.ensemble("digits")


@pytest.fixture(scope="module")
def house(
    tmp_path_factory: pytest.TempPathFactory, digits_ensemble: DigitsEnsemble
) -> Iterator[House]:
    """Two ensembles, heads and networks, and two processes."""
    data = tmp_path_factory.mktemp("house") / "data"
    settings, engine = installed(data, f"sqlite:///{data}.sqlite", digits_ensemble)
    spec, labels = digits_ensemble.manifest.input, digits_ensemble.public_labels
    private = Dataset(digits_ensemble.public, labels, DIGITS, spec, name="few")
    ward = settings.ensembles_dir / "ward"
    train_ensemble(private, ward, name="ward", teachers=3, how=Networks(epochs=1))
    ledger = Ledger(engine, settings.secret_key_path.read_bytes())
    register_ensemble(ledger, settings, "ward", 20.0, 1e-5)
    voters = ProcessVoters(settings.data_dir, None, processes=2, seconds=60)
    yield House(settings, ledger, voters, LocalVoters(data), digits_ensemble.public)
    pids = voting()
    voters.close()
    assert len(pids) == 2
    assert not voting(), "closed, and still there"
    engine.dispose()


def voting(parent: int = os.getpid()) -> list[int]:
    """Return the voting processes of a process; threads' children are in `children` of theirs."""
    found = []
    for task in Path(f"/proc/{parent}/task").iterdir():
        for child in (task / "children").read_text().split():
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            found += [int(child)] if b"voting_process" in command else []
    return sorted(found)


def test_votes_are_those_of_threads_bit_for_bit_whoever_asks_at_the_same_time(house: House) -> None:
    sizes = (1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7)
    asked = [(name, size) for size in sizes for name in ("digits", "ward")]

    def votes(given: tuple[str, int]) -> np.ndarray:
        name, size = given
        return house.voters.votes(house.ledger.ensemble(name), house.inputs[:size])

    with ThreadPoolExecutor(len(asked)) as pool:
        found = list(pool.map(votes, asked))
    for (name, size), counts in zip(asked, found, strict=True):
        expected = house.threads.votes(house.ledger.ensemble(name), house.inputs[:size])
        assert counts.dtype == np.int64
        assert np.array_equal(counts, expected)
    assert len(voting()) == 2


def test_a_process_that_is_killed_while_it_votes_is_replaced_and_its_block_asked_again(
    house: House,
) -> None:
    inputs = house.inputs[: 2 * BLOCK]  # both processes are asked
    expected = house.voters.votes(house.digits, inputs)
    killed, other = pids = voting()
    with ThreadPoolExecutor(1) as pool:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        asked = pool.submit(house.voters.votes, house.digits, inputs)
        until(lambda: house.voters._idle.qsize(), lambda idle: idle == 0)
        os.kill(killed, signal.SIGKILL)
        os.kill(other, signal.SIGCONT)
        assert np.array_equal(asked.result(timeout=60), expected)
    house.voters.votes(house.digits, inputs)
    assert len(voting()) == 2
    assert killed not in voting()
    assert other in voting()


def test_processes_that_cannot_start_or_always_end_are_an_unavailable_ensemble(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    voters = ProcessVoters(house.settings.data_dir, None, processes=1, seconds=60)
    monkeypatch.setattr(process_voters, "PROGRAM", "this")  # it ends at once
    with pytest.raises(EnsembleUnavailable, match="ended before they had voted"):
        voters.votes(house.digits, house.inputs[:1])
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(EnsembleUnavailable, match="ended before they had voted"):
        voters.check(house.digits)


def test_a_process_that_hangs_is_replaced_and_nothing_is_charged(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = {
        **{"name": "study", "ensemble": "digits", "epsilon": 5.0, "delta": 1e-5},
        "mechanism": {"name": "gnmax", "sigma": 4.0},
    }
    open_project(house.ledger, ProjectOpen.model_validate(terms))
    service = Labeling(house.ledger, house.voters, Metrics(), 4096)
    ask = service.check("study", house.inputs[:1])
    house.voters.votes(house.digits, house.inputs[: 2 * BLOCK])  # both are ready
    pids = voting()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    with monkeypatch.context() as impatient:
        impatient.setattr(house.voters, "_seconds", 1)
        with pytest.raises(EnsembleUnavailable, match=r"longer than 1 s .*Nothing was charged"):
            service.answer("study", [ask])
    (other,) = voting()
    assert other in pids, "the one that hung is gone"
    assert house.ledger.project("study").charges == 0
    os.kill(other, signal.SIGCONT)
    service.answer("study", [ask])
    assert house.ledger.project("study").charges == 1


def test_files_that_were_changed_do_not_vote_until_they_are_restored(house: House) -> None:
    voters, record, x = house.voters, house.digits, house.inputs[:1]
    (file,) = (house.settings.data_dir / record.path).glob("teachers-*.safetensors")
    expected, kept = voters.votes(record, x), file.with_suffix(".kept")
    shutil.move(file, kept)
    altered = bytearray(kept.read_bytes())
    altered[-1] ^= 1
    file.write_bytes(altered)
    for refused in (voters.check, house.threads.check, lambda record: voters.votes(record, x)):
        with pytest.raises(EnsembleUnavailable, match="was altered"):
            refused(record)
    ward = house.ledger.ensemble("ward")
    assert np.array_equal(voters.votes(ward, x), house.threads.votes(ward, x)), (
        "the other one votes"
    )
    file.unlink()
    with pytest.raises(EnsembleUnavailable):
        voters.check(record)
    shutil.move(kept, file)
    voters.check(record)
    assert np.array_equal(voters.votes(record, x), expected)
