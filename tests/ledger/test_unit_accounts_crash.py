"""Replicas that run at once or are killed: accounts are those of the charges, in their order."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from support.ledgers import NEIGHBOURS, Opened, many, open_people, recomputed
from support.processes import PATIENCE_SECONDS, start, until
from support.workers import ask_and_tell


def replayed(opened: Opened, inputs: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint32]:
    return recomputed(opened.ledger, "study", opened.voters.found, inputs)


@pytest.mark.slow
def test_replicas_at_once_and_killed_leave_no_answer_uncounted(
    database_url: str, tmp_path: Path
) -> None:
    opened = open_people(database_url, 2.0, {**NEIGHBOURS, "queries": 1000}, spare=True)
    inputs, log = many(opened.people, 60), tmp_path / "told"
    until(lambda: killed_after(8, start(ask_and_tell, database_url, 60, 0, str(log)), log))
    replicas = [start(ask_and_tell, database_url, 60, seed, str(log)) for seed in (1, 2, 3)]
    for process in replicas:
        process.join(PATIENCE_SECONDS)
        assert process.exitcode == 0
    told = {tuple(map(int, line.split())) for line in log.read_text().splitlines()}
    assert len({index for index, _ in told}) == len(told), "each input has one charge"
    charged = opened.ledger.projects.get("study").charges
    assert {seq for _, seq in told} <= set(range(1, charged + 1))
    assert opened.stored().tolist() == replayed(opened, inputs).tolist()
    assert opened.stored().max() > 3
    assert opened.ledger.verifier.verify_project("study").problems == []


def killed_after(lines: int, process: object, log: Path) -> bool:
    until(lambda: log.exists() and len(log.read_text().splitlines()) >= lines)
    process.kill()  # type: ignore[attr-defined]
    process.join(PATIENCE_SECONDS)  # type: ignore[attr-defined]
    assert process.exitcode in (-signal.SIGKILL, 0)  # type: ignore[attr-defined]
    return True
