"""What commands make is closed to other accounts; `doctor --fix` closes what was opened later."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np

from support.processes import Terrine
from support.wording import says


def open_to_others(directory: Path) -> dict[str, str]:
    """The files and directories that other accounts may use, with their modes."""
    return {
        str(path.relative_to(directory.parent)): oct(stat.S_IMODE(path.stat().st_mode))
        for path in (directory, *directory.rglob("*"))
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    }


def test_teachers_trained_before_init_and_all_that_follows_are_private(
    terrine: Terrine, database_url: str, tmp_path: Path
) -> None:
    data, records = tmp_path / "data", tmp_path / "private.npz"
    draws = np.random.default_rng(0)
    inputs = draws.integers(0, 256, (60, 8, 8), dtype=np.uint8)
    np.savez(records, x=inputs, y=np.arange(60) % 3, classes=["a", "b", "c"])
    train = ("--name", "digits", "--teachers", 5, "--kind", "heads:augmentations=1")
    trained = terrine("ensemble", "train", records, *train)
    assert trained.code == 0, trained.err
    assert open_to_others(data) == {}
    assert terrine("init").code == 0
    cap = ("--epsilon", "20", "--delta", "1e-3")
    assert terrine("ensemble", "register", "digits", *cap).code == 0
    log = tmp_path / "log.jsonl"
    assert terrine("ledger", "export", "--output", log).code == 0
    assert open_to_others(data) == {}
    assert log.stat().st_mode & 0o077 == 0


def test_the_doctor_closes_what_is_open_only_when_it_is_told_to(
    terrine: Terrine, database_url: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    assert terrine("init").code == 0
    opened = [data, data / "secret.key", data / "terrine.sqlite"]
    for path in opened:
        path.chmod(path.stat().st_mode | 0o055)
    assert terrine("doctor").code == 1
    assert len(open_to_others(data)) == 3
    done = terrine("doctor", "--fix")
    assert done.code == 0, done.out
    assert [says(done.err, "Closed", path) for path in opened] == [True] * 3
    assert open_to_others(data) == {}
    assert terrine("doctor", "--fix").err == ""
