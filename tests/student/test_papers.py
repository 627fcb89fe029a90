"""A student leaves with its papers: what protected people, and that the service says the same."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.clients import CONFIDENT, QUICK
from support.data import DigitsEnsemble
from support.processes import Terrine, until
from support.servers import LOG, History, RunningServer, policy_text, running_server
from support.wording import holds, refuses, says
from terrine_client import Client
from terrine_client._privacy import digest_of
from terrine_client.distill import (
    Distilled,
    PapersError,
    PapersReport,
    PrivacyStatement,
    distill,
    verify_papers,
)
from terrine_client.errors import ConnectionFailed
from terrine_protocol import ProjectStatus

PUBLIC = 120
POLICY = policy_text().encode()


@dataclass(frozen=True)
class Trained:
    """A service whose log is signed, a student of it, and the token that it had."""

    server: RunningServer
    directory: Path
    made: Distilled
    token: str

    def verify(self, directory: Path, policy: bytes | None = POLICY) -> PapersReport:
        with Client(self.server.url, self.token) as client:
            return until(
                lambda: verify_papers(client, directory, policy),
                lambda report: report.log is None or not report.log.waiting,
            )


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, digits_ensemble: DigitsEnsemble
) -> Iterator[Trained]:
    folder = tmp_path_factory.mktemp("papers")
    data = folder / "data"
    data.mkdir()
    (data / "checkpoint.key").write_text(LOG.secret)
    url = f"sqlite:///{folder / 'terrine.sqlite'}"
    with running_server(data, url, digits_ensemble, checkpoint_seconds=0.1) as server:
        server.open_project(mechanism={"name": "noisy_votes", "sigma": 40.0}, epsilon=20.0)
        token, out = server.token(), folder / "student"
        own = (digits_ensemble.unseen, digits_ensemble.unseen_labels)
        with Client(server.url, token) as client:
            public = digits_ensemble.public[:PUBLIC]
            made = distill(client, public, out, held_out=own, training=QUICK)
        yield Trained(server, out, made, token)


@pytest.fixture
def copy(trained: Trained, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained.directory, tmp_path / "copy"))


def test_its_papers_verify_with_the_service_and_with_its_log(trained: Trained) -> None:
    for policy in (POLICY, None):
        report = trained.verify(trained.directory, policy)
        assert report.ok, report.problems
        assert report.log is not None
        assert len(report.log.proofs) == report.statement.receipts == PUBLIC
    stated, project = report.statement, trained.server.ledger.projects.get("study")
    assert (stated.project, stated.opened_at) == ("study", project.opened_at)
    assert stated.population == project.ensemble.population.name
    assert (stated.unit, stated.relation) == (project.ensemble.protects, "replace one")
    assert (stated.epsilon, stated.delta, stated.accounting) == (20.0, 1e-5, "worst_case")
    assert stated.mechanism.name == "noisy_votes"
    assert stated.head is not None
    assert stated.head.charge == stated.charges == PUBLIC
    assert stated.files.keys() == {
        "model.json",
        "model.safetensors",
        "report.json",
        "receipts.json",
    }


def test_its_card_has_metadata_and_figures(trained: Trained) -> None:
    card = (trained.directory / "README.md").read_text()
    _, front, text = card.split("---\n", 2)
    metadata, report = yaml.safe_load(front), trained.made.report
    assert "license" not in metadata, "its owner chooses one"
    assert metadata["pipeline_tag"] == "image-classification"
    (result,) = metadata["model-index"][0]["results"]
    values = {each["type"]: each["value"] for each in result["metrics"]}
    assert values["accuracy"] == pytest.approx(report.accuracy, abs=1e-6)
    assert values.keys() == {"accuracy", "balanced_accuracy"}
    for each in report.by_class:
        assert each.recall is not None
        assert f"| {each.name} | {each.inputs:,} | {each.recall:.2%} |" in text
    assert PrivacyStatement.load(trained.directory).table() in text


def test_its_owner_edits_the_rest_of_the_card(trained: Trained, copy: Path) -> None:
    card = copy / "README.md"
    text = re.sub("# license: .*", "license: cc-by-4.0", card.read_text())
    card.write_text(text.replace("The project states no purpose", "For digits of ours"))
    assert trained.verify(copy).ok


def stating(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Whoever edits a field of privacy.json, and the card to match."""

    def edit(directory: Path) -> None:
        before = PrivacyStatement.load(directory)
        path = directory / "privacy.json"
        stated = json.loads(path.read_text())
        stated[name] = change(stated[name])
        path.write_text(json.dumps(stated))
        card = directory / "README.md"
        after = PrivacyStatement.load(directory).table()
        card.write_text(card.read_text().replace(before.table(), after))

    return edit


def append(name: str) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        with (directory / name).open("ab") as file:
            file.write(b" ")

    return edit


def edit_card(directory: Path) -> None:
    card = directory / "README.md"
    card.write_text(card.read_text().replace("ε = 20,", "ε = 0.1,"))


def invent_receipt(directory: Path) -> None:
    """An entry that nobody was charged for, with all digests as they should be."""
    path = directory / "receipts.json"
    receipts = json.loads(path.read_text())
    receipts["entries"]["7"][0] = "ab" * 32
    path.write_text(json.dumps(receipts))
    restate_receipts(directory)


def leave_out_receipts(directory: Path) -> None:
    path = directory / "receipts.json"
    receipts = json.loads(path.read_text())
    receipts["entries"] = dict(list(receipts["entries"].items())[:5])
    path.write_text(json.dumps(receipts))
    restate_receipts(directory)


def restate_receipts(directory: Path) -> None:
    digest = digest_of(directory / "receipts.json")
    stating("files", lambda files: {**files, "receipts.json": digest})(directory)


def show_another_history(directory: Path) -> None:
    """A checkpoint that the log signed in another world."""
    note = History("forged", 400).note(400)
    path = directory / "receipts.json"
    receipts = json.loads(path.read_text())
    receipts["checkpoint"] = note
    path.write_text(json.dumps(receipts))
    stating("checkpoint", lambda _: note)(directory)
    restate_receipts(directory)


TAMPERED: dict[str, tuple[Callable[[Path], object], tuple[object, ...]]] = {
    "weights": (append("model.safetensors"), ("model.safetensors", "altered")),
    "description": (append("model.json"), ("model.json", "altered")),
    "report": (append("report.json"), ("report.json", "altered")),
    "receipts": (append("receipts.json"), ("receipts.json", "altered")),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), ("model.safetensors", "read")),
    "no receipts": (lambda d: (d / "receipts.json").unlink(), ("receipts.json", "read")),
    "no card": (lambda d: (d / "README.md").unlink(), ("README.md", "read")),
    "card": (edit_card, ("README.md", "privacy.json")),
    "epsilon": (stating("epsilon", lambda _: 0.1), ("epsilon", "0.1", "20.0")),
    "delta": (stating("delta", lambda _: 1e-9), ("delta", "1e-09", "1e-05")),
    "unit": (stating("unit", lambda _: "all records"), ("unit", "records")),
    "population": (stating("population", lambda _: "others"), ("population", "others")),
    "units": (stating("units", lambda units: 2 * units), ("units",)),
    "accounting": (stating("accounting", lambda _: "data_dependent"), ("data_dependent",)),
    "rule": (stating("rule", lambda _: {"name": "rdp", "order": 7.0}), ("rule", "7.0")),
    "mechanism": (
        stating("mechanism", lambda _: {"name": "gnmax", "sigma": 40.0}),
        ("mechanism", "gnmax"),
    ),
    "ensemble": (stating("manifest_sha256", lambda _: "0" * 64), ("manifest_sha256",)),
    "spent": (stating("epsilon_spent", lambda spent: spent / 2), ("spent",)),
    "entries": (stating("charges", lambda n: n + 1), (PUBLIC, PUBLIC + 1)),
    "head": (stating("head", lambda head: {**head, "hash": "0" * 64}), ("head",)),
    "invented receipt": (invent_receipt, (7,)),
    "receipts left out": (leave_out_receipts, ("receipts.json", "receipts")),
    "another history": (show_another_history, ("HISTORIES",)),
}
"""What was done to a student's papers, and what the report must say."""


@pytest.mark.parametrize("what", TAMPERED)
def test_papers_that_were_tampered_with_do_not_verify(
    what: str, trained: Trained, copy: Path
) -> None:
    tamper, said = TAMPERED[what]
    tamper(copy)
    with Client(trained.server.url, trained.token) as client:
        report = until(
            lambda: verify_papers(client, copy, POLICY),
            lambda r: says(r.problems, *said) or not (r.log and r.log.waiting),
        )
    assert not report.ok
    holds(report.problems, *said)


@pytest.mark.parametrize(
    ("name", "text"),
    [("no such file", None), ("no JSON", "ε"), ("no format", "{}"), ("a list", "[1]")],
)
def test_a_folder_without_papers_is_refused(
    name: str, text: str | None, trained: Trained, copy: Path
) -> None:
    path = copy / "privacy.json"
    path.unlink()
    if text is not None:
        path.write_text(text)
    with (
        Client(trained.server.url, trained.token) as client,
        refuses(PapersError, "privacy.json", "train"),
    ):
        verify_papers(client, copy)


def test_a_token_of_another_project_verifies_nothing(trained: Trained, copy: Path) -> None:
    trained.server.open_project("other", mechanism=CONFIDENT, epsilon=3.0)
    with Client(trained.server.url, trained.server.token(project="other")) as client:
        report = verify_papers(client, copy)
    assert (report.ok, report.log) == (False, None)
    holds(report.problems, "study", "other")


def test_the_command_says_what_is_wrong_and_exits_with_1(
    trained: Trained, copy: Path, terrine: Terrine, tmp_path: Path
) -> None:
    policy = tmp_path / "policy"
    policy.write_bytes(POLICY)
    known = {"TERRINE_URL": trained.server.url, "TERRINE_TOKEN": trained.token}
    trained.verify(copy)
    done = terrine("student", "verify", copy, "--policy", policy, **known)
    assert (done.code, done.err) == (0, "")
    holds(done.out, "budget", 20)
    append("model.safetensors")(copy)
    done = terrine("student", "verify", copy, **known)
    assert done.code == 1
    holds(done.err, "model.safetensors", "altered")
    done = terrine("student", "verify", copy)
    assert done.code == 1
    holds(done.err, "TERRINE_URL")


def test_an_unreachable_service_is_said_to_be_so(trained: Trained, copy: Path) -> None:
    with (
        Client("http://127.0.0.1:9", trained.token, retries=0) as client,
        refuses(ConnectionFailed, "127.0.0.1"),
    ):
        verify_papers(client, copy)


def test_an_interrupted_run_keeps_its_receipts(
    server: RunningServer, tmp_path: Path, digits_ensemble: DigitsEnsemble
) -> None:
    """And a service whose log nobody signs has papers without a checkpoint, which do not verify."""
    server.open_project(mechanism=CONFIDENT, epsilon=15.0)
    public, out = digits_ensemble.public, tmp_path / "s"

    def pause_after_first_round(line: str) -> None:
        if line.startswith("Round 1: training"):
            server.ledger.projects.set_status("study", ProjectStatus.PAUSED)

    with Client(server.url, server.token()) as client, pytest.raises(Exception, match="paused"):
        distill(client, public, out, training=QUICK, tell=pause_after_first_round)
    kept = json.loads((out / "receipts.json").read_text())["entries"]
    assert kept
    server.ledger.projects.set_status("study", ProjectStatus.ACTIVE)
    with Client(server.url, server.token()) as client:
        distill(client, public, out, training=QUICK)
        stated = PrivacyStatement.load(out)
        assert stated.receipts == stated.charges > len(kept)
        assert stated.checkpoint is None
        report = verify_papers(client, out, POLICY)
    holds(report.problems, "checkpoint")
