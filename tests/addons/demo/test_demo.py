"""`terrine demo` does the whole job with the real parts, and leaves nothing running."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from support.processes import PATIENCE_SECONDS, REPEATED, Terrine
from support.wording import holds, refuses, says
from terrine_addons.demo.material import choose, mnist
from terrine_models.data.arrays import DataError

TERRINE = [sys.executable, "-m", "terrine_server"]


def start(*arguments: str | Path, cwd: Path) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TERRINE_")}
    # The demo must not touch what an owner has set for a real server.
    environment["TERRINE_DATABASE_URL"] = f"sqlite:///{cwd / 'precious.sqlite'}"
    environment |= REPEATED
    return subprocess.Popen(
        [*TERRINE, *map(str, arguments)],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts its background jobs, such as these tests, with interrupts ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.nightly
def test_the_quick_demo_runs_every_step(terrine: Terrine, tmp_path: Path) -> None:
    demo = start("demo", "--quick", "--out", "made", cwd=tmp_path)
    out, err = demo.communicate(timeout=280)  # of a hang alone
    assert demo.returncode == 0, err
    made = tmp_path / "made"
    figures = json.loads((made / "demo.json").read_text())
    assert figures["epsilon"] * 0.9 < figures["epsilon_spent"] <= figures["epsilon"]
    # The noise is seeded, and so are the trainings. A student that collapsed has 10 %, and so has
    # one whose answers came without votes.
    assert figures["student"] > 0.93
    assert figures["without_privacy"] > figures["student"]
    assert 0.731 < figures["right_at_most"] < 0.7311
    assert figures["ledger_intact"]
    assert figures["asked"] == 400
    for expected in (
        "--quick",
        "privacy budget spent",
        "same answers, free",
        "quickstart private.npz --public",
        "intact",
        "demo.json",
    ):
        holds(" ".join(out.split()), *expected.split())
    assert (made / "student" / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "precious.sqlite").exists()
    assert "terrine_" not in out.replace("terrine-data", ""), "no token"

    data = {"TERRINE_DATA_DIR": str(made / "terrine-data")}
    shown = terrine("ledger", "show", "demo", **data).fine
    holds(shown, f"{figures['epsilon_spent']:.6g}")
    verified = terrine("ledger", "verify", **data).fine
    assert figures["ledger_head"] in verified.replace("\n", "")


@pytest.mark.nightly
def test_an_interrupted_demo_stops_its_server_and_ends(tmp_path: Path) -> None:
    demo = start("demo", "--quick", cwd=tmp_path)
    assert demo.stdout is not None
    try:
        assert any(says(line, "student", "train") for line in demo.stdout), "the server runs"
        demo.send_signal(signal.SIGINT)
        _, err = demo.communicate(timeout=PATIENCE_SECONDS)
    finally:
        demo.kill()
    # Python reports -SIGINT where the interrupt met code that is being imported; a shell 130.
    assert demo.returncode in (130, -signal.SIGINT)
    assert "Traceback" not in err
    assert (tmp_path / "terrine-demo" / "private.npz").exists()


def test_an_interrupt_that_meets_a_finalizer_is_not_lost() -> None:
    program = """
import signal, time, weakref
from terrine_server.cli.console import run
class Anything: pass
def command():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    thing = Anything()
    reference = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
    del thing  # Python drops what is raised by a reference's callback
    time.sleep(20)
run(command)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (130, "Interrupted.\n")


def test_files_of_an_earlier_run_are_not_touched(terrine: Terrine, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes").write_text("keep")
    said = terrine("demo", "--quick", "--out", mine).refused
    holds(said, mine, "empty")
    assert [path.name for path in mine.iterdir()] == ["notes"]


def test_missing_data_is_not_replaced_by_other_data(
    terrine: Terrine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    holds(terrine("demo", "--data", "nowhere").refused, "nowhere", "directory")
    assert not (tmp_path / "terrine-demo").exists()


def test_without_mnist_the_digits_are_used_and_the_reason_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    material = choose(None, False, "http://127.0.0.1:9/")
    assert "digits" in material.name
    assert "127.0.0.1:9" in material.why


def test_mnist_is_split_into_private_public_and_held_out(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for part, rows in (("train", 60), ("t10k", 20)):
        images = random.integers(0, 256, (rows, 28, 28), dtype=np.uint8)
        labels = (np.arange(rows) % 10).astype(np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
            content = bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()
            (tmp_path / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(content))
    material = mnist(tmp_path, "as a test")
    assert len(material.private) == 60
    assert len(material.public) == len(material.truth) == 18
    assert (material.held_out_labels == [8, 9]).all()
    (tmp_path / "t10k-images-idx3-ubyte.gz").unlink()
    with refuses(DataError, "t10k-images"):
        mnist(tmp_path, "as a test")
