"""A student buys labels over a real socket, trains, and never pays twice."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestCentroid

from support.clients import AMPLE, CONFIDENT, INTERACTIVE, QUICK, study
from support.data import PRIVATE
from support.processes import Terrine
from support.servers import RunningServer
from support.wording import holds, refuses
from terrine_client import NO_COUNT, Client
from terrine_client.distill import DistillError, distill
from terrine_client.errors import BudgetExhausted, ConfigurationError, ProjectPaused
from terrine_models.data.arrays import DIGITS, Dataset, InputSpec
from terrine_models.students.models import Student, Training
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.training import train_ensemble
from terrine_protocol import EnsembleRegister, ProjectOpen, ProjectStatus
from terrine_server.owner.operations import open_project, register_ensemble


@pytest.mark.slow
@pytest.mark.usefixtures("drawn")
def test_a_student_queries_until_it_is_refused_and_trains(
    server: RunningServer, tmp_path: Path
) -> None:
    server.open_project(mechanism=CONFIDENT, epsilon=8.0)
    lines: list[str] = []
    with Client(server.url, server.token()) as client:
        made = study(server, client, tmp_path / "s", Training(), tell=lines.append)
        with pytest.raises(BudgetExhausted):
            client.label(server.ensemble.public[made.outcomes == ""][:1])
    report, bought, digits = made.report, made.labels >= 0, server.ensemble
    assert report.refused
    assert report.epsilon * 0.9 < report.epsilon_spent <= report.epsilon
    assert len(report.rounds) == 3
    assert sum(entry.asked for entry in report.rounds) == report.charges
    assert (made.labels == server.ensemble.public_labels)[bought].mean() > 0.85
    public, unseen = (each.reshape(len(each), -1) for each in (digits.public, digits.unseen))
    plain = NearestCentroid().fit(public[bought], made.labels[bought])
    assert report.accuracy is not None
    # The noise is seeded: 87 % of 197, where the plain model of the same answers has 82 %.
    assert report.accuracy > plain.score(unseen, digits.unseen_labels)
    assert report.accuracy == made.student.accuracy(
        server.ensemble.unseen, server.ensemble.unseen_labels
    )
    rounds = [line.partition(":")[0] for line in lines if line.startswith("Round")]
    assert rounds == [f"Round {i // 2 + 1}" for i in range(6)]
    assert lines[-1] == f"Student: {report.choice.chosen}. {report.choice.why}"

    written = json.loads((tmp_path / "s" / "report.json").read_text())
    assert written["epsilon_spent"] == report.epsilon_spent
    assert [each["method"] for each in written["choice"]["judged"]] == ["ridge", "kernel"]
    assert written["choice"]["chosen"] == report.choice.chosen
    assert report.plain is not None
    assert written["plain"] == report.plain > 0.5
    assert written["mechanism"].items() >= CONFIDENT.items()
    assert (tmp_path / "s" / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    kept = Student.load(tmp_path / "s")
    assert (
        kept.predict_indices(server.ensemble.unseen)
        == made.student.predict_indices(server.ensemble.unseen)
    ).all()


def test_an_interrupted_study_continues_and_pays_nothing_twice(
    server: RunningServer, tmp_path: Path
) -> None:
    server.open_project(mechanism=CONFIDENT, epsilon=AMPLE)

    def pause_after_first_round(line: str) -> None:
        if "queries" in line:
            server.ledger.projects.set_status("study", ProjectStatus.PAUSED)

    with Client(server.url, server.token(), retries=0) as client:
        with pytest.raises(ProjectPaused):
            study(server, client, tmp_path / "s", tell=pause_after_first_round)
        server.ledger.projects.set_status("study", ProjectStatus.ACTIVE)
        made = study(server, client, tmp_path / "s")
    assert len(made.report.rounds) == 3
    assert made.report.charges == (made.outcomes != "").sum()
    assert [charges for charges, _ in made.report.spending] == sorted(
        charges for charges, _ in made.report.spending
    )


def test_noisy_counts_are_kept_with_the_answers_they_came_with(
    server: RunningServer, tmp_path: Path
) -> None:
    server.open_project(mechanism={"name": "noisy_votes", "sigma": 4.0}, epsilon=8.0)
    with Client(server.url, server.token()) as client:
        first = study(server, client, tmp_path / "s", queries=6)
        made = study(server, client, tmp_path / "s", queries=10)
        again = study(server, client, tmp_path / "other", queries=10)
    teachers = server.ensemble.manifest.teachers
    assert made.answers.noise == 4.0 / teachers
    asked = made.outcomes == "answered"
    assert asked.sum() == 10
    assert (made.answers.labels == made.labels).all()
    before = first.outcomes == "answered"
    assert (made.answers.shares[before] == first.answers.shares[before]).all()
    assert (again.answers.shares == made.answers.shares).all()
    with np.load(tmp_path / "s" / "answers.npz", allow_pickle=False) as kept:
        counts = kept["noisy_counts"]
        assert (counts[asked] == np.rint(made.answers.shares[asked] * teachers)).all()
        assert (counts[~asked] == NO_COUNT).all()
        assert float(kept["noise_sigma"]) == 4.0


@pytest.mark.parametrize(
    "mechanism",
    [pytest.param(CONFIDENT, marks=pytest.mark.nightly), {"name": "noisy_votes", "sigma": 4.0}],
    ids=["labels", "counts"],
)
def test_another_student_of_a_spent_budget_has_all_that_was_bought(
    server: RunningServer, tmp_path: Path, mechanism: dict[str, Any]
) -> None:
    server.open_project(mechanism=mechanism, epsilon=8.0)
    lines = list[str]()
    with Client(server.url, server.token()) as client:
        first = study(server, client, tmp_path / "a")
        spent = client.budget()
        assert spent.affordable == 0
        again = study(server, client, tmp_path / "b", Training("ridge"), seed=7, tell=lines.append)
        assert client.budget() == spent
    assert (again.labels == first.labels).all()
    assert (again.outcomes == first.outcomes).all()
    holds(lines, "before", "free")


def test_an_interactive_study_begins_uniform_and_then_sends_its_predictions(
    server: RunningServer, tmp_path: Path
) -> None:
    server.open_project(mechanism=INTERACTIVE, epsilon=10.0)
    with Client(server.url, server.token()) as client:
        made = study(server, client, tmp_path / "s", rounds=2)
    with np.load(tmp_path / "s" / "answers.npz") as notebook:
        sent = notebook["beliefs"][made.outcomes != ""]
    uniform = (sent == 0.1).all(1)
    assert uniform.sum() == made.report.rounds[0].asked
    assert (~uniform).sum() == made.report.rounds[1].asked > 0
    assert np.allclose(sent.sum(1), 1)


@pytest.mark.parametrize("lost", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_an_interactive_query_sent_again_is_the_same_query(
    server: RunningServer, tmp_path: Path, lost: bool
) -> None:
    server.open_project(mechanism=INTERACTIVE, epsilon=10.0)

    class Forgetful(Client):
        forgets = False

        def label(self, *arguments: Any, **options: Any) -> Any:
            answer = super().label(*arguments, **options)
            if self.forgets:
                raise ProjectPaused.__new__(ProjectPaused)
            return answer

    with Forgetful(server.url, server.token()) as client:

        def forget(line: str) -> None:
            client.forgets = lost and "queries" in line

        if lost:
            with pytest.raises(ProjectPaused):
                study(server, client, tmp_path / "s", rounds=2, queries=20, tell=forget)
        client.forgets = False
        made = study(server, client, tmp_path / "s", rounds=2, queries=20)
    assert made.report.charges == 20


def test_nothing_is_sent_before_all_arguments_are_checked(
    server: RunningServer, tmp_path: Path
) -> None:
    server.open_project(mechanism=CONFIDENT, epsilon=AMPLE)
    digits = server.ensemble
    with Client(server.url, server.token()) as client:
        with refuses(DistillError, "[400, 64]", "[N, 8, 8]"):
            distill(client, digits.public.reshape(400, 64), tmp_path / "a")
        with refuses(DistillError, "public"):
            distill(
                client,
                digits.public,
                tmp_path / "a",
                held_out=(digits.public, digits.public_labels),
            )
        with refuses(DistillError, 1):
            distill(client, digits.public, tmp_path / "a", rounds=0)
        assert client.budget().charges == 0
        study(server, client, tmp_path / "b", queries=4)
        with refuses(ConfigurationError, "inputs"):
            distill(client, digits.public[:300], tmp_path / "b", training=QUICK)
        (tmp_path / "b" / "answers.npz").write_bytes(b"PK damaged")
        with refuses(ConfigurationError, "free"):
            study(server, client, tmp_path / "b", queries=4)
        assert client.budget().charges == 4


def test_a_spent_budget_leaves_nothing_to_learn_from(server: RunningServer, tmp_path: Path) -> None:
    server.open_project(mechanism=CONFIDENT, epsilon=3.0)
    with Client(server.url, server.token()) as client:
        study(server, client, tmp_path / "a")
        fresh = server.ensemble.unseen
        with refuses(DistillError, "learn"):
            distill(client, fresh, tmp_path / "b", training=QUICK)


def test_the_commands_train_a_student_label_inputs_and_show_the_budget(
    terrine: Terrine, server: RunningServer, tmp_path: Path
) -> None:
    server.open_project(mechanism=CONFIDENT, epsilon=AMPLE)
    digits, token = server.ensemble, server.token()
    np.save(tmp_path / "pool.npy", digits.public)
    np.savez(tmp_path / "own.npz", x=digits.unseen, y=digits.unseen_labels)
    np.savez(tmp_path / "labelled.npz", x=digits.public[:200], y=digits.public_labels[:200])
    output = terrine(
        "student", "--url", server.url, "train", tmp_path / "pool.npy", "--rounds", "2",
        "--method", "ridge", "--queries", "40", "--held-out", tmp_path / "own.npz",
        "--labels", tmp_path / "labelled.npz", "--out", tmp_path / "student", TERRINE_TOKEN=token,
    ).fine  # fmt: skip
    holds(output, 197)
    written = json.loads((tmp_path / "student" / "report.json").read_text())
    assert written["public_labels"] == 200
    assert written["choice"]["chosen"].startswith("labels"), "40 answers are few beside them"
    card = (tmp_path / "student" / "README.md").read_text()
    holds(card, 200, "public", "labels")
    holds(output, "held-out", "answers")
    assert "recall" in output
    holds(output, "ridge", "(ridge")
    holds(output, "Enough")
    holds(output, "budget")
    assert {path.name for path in (tmp_path / "student").iterdir()} == {
        "README.md", "accuracy.png", "answers.npz", "model.json", "model.safetensors",
        "privacy.json", "receipts.json", "report.json",
    }  # fmt: skip

    (tmp_path / "token").write_text(token + "\n")
    budget = ("student", "--token-file", tmp_path / "token", "budget")
    assert "charges" in terrine(*budget, TERRINE_URL=server.url).fine

    np.save(tmp_path / "few.npy", digits.unseen[:3])
    at = {"TERRINE_URL": server.url, "TERRINE_TOKEN": token}
    label = ("student", "label", tmp_path / "few.npy", "--out", tmp_path / "labels.npz")
    terrine(*label, **at).fine  # noqa: B018 - asserts
    with np.load(tmp_path / "labels.npz") as file:
        assert set(file.files) == {"outcomes", "labels", "names", "charges"}
        classes = digits.manifest.classes
        assert [name or None for name in file["names"]] == [
            None if label < 0 else classes[label] for label in file["labels"]
        ]


def test_public_labels_that_do_not_fit_are_refused_before_anything_is_asked(
    server: RunningServer, tmp_path: Path
) -> None:
    server.open_project(mechanism=CONFIDENT, epsilon=AMPLE)
    digits = server.ensemble
    x, y = digits.public[:60], digits.public_labels[:60]
    wrong: list[tuple[tuple[Any, Any], tuple[object, ...]]] = [
        ((x, y[:59]), (59, 60)),
        ((x, np.full(60, "eleven")), ("'eleven'",)),
        ((x[:, :7], y), ("[60, 7, 8]",)),
        ((x[y == 3], y[y == 3]), ("class",)),
        ((x[:12], y[:12]), (12, 20)),
        ((digits.unseen, digits.unseen_labels), ("held-out",)),
    ]
    with Client(server.url, server.token()) as client:
        for labels, said in wrong:
            with refuses(DistillError, *said):
                study(server, client, tmp_path / "s", labels=labels)
        assert client.budget().charges == 0


@pytest.mark.nightly
@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize(
    "mechanism", [CONFIDENT, {"name": "noisy_votes", "sigma": 4.0}], ids=["labels", "counts"]
)
def test_the_command_ends_on_images_of_ordinary_size(
    terrine: Terrine, server: RunningServer, tmp_path: Path, mechanism: dict[str, Any]
) -> None:
    digits = server.ensemble

    def enlarged(images: np.ndarray) -> np.ndarray:
        return np.pad(np.kron(images, np.ones((1, 3, 3), np.uint8)), ((0, 0), (2, 2), (2, 2)))

    spec = InputSpec(shape=(28, 28), dtype="uint8", low=0, high=16)
    written = load_digits()
    private = enlarged(written.images[:PRIVATE].astype(np.uint8))
    records = Dataset(private, written.target[:PRIVATE].astype(np.int64), DIGITS, spec)
    made = server.settings.ensembles_dir / "large"
    train_ensemble(records, made, name="large", teachers=30)
    cap = {"epsilon": 90.0, "delta": 1e-4, "population": "large", "disjoint": True}
    wanted = EnsembleRegister.model_validate({"name": "large", **cap})
    register_ensemble(server.ledger, server.settings, wanted)
    terms = {"name": "large", "ensemble": "large", "epsilon": 80, "delta": 1e-5}
    open_project(server.ledger, ProjectOpen.model_validate({**terms, "mechanism": mechanism}))
    np.save(tmp_path / "pool.npy", enlarged(digits.public))
    np.savez(tmp_path / "own.npz", x=enlarged(digits.unseen), y=digits.unseen_labels)
    said = terrine(
        "student", "--url", server.url, "train", tmp_path / "pool.npy", "--queries", "100",
        "--held-out", tmp_path / "own.npz", "--out", tmp_path / "student",
        TERRINE_TOKEN=server.token(project="large"),
    ).fine  # fmt: skip
    report = json.loads((tmp_path / "student" / "report.json").read_text())
    assert [each["method"] for each in report["choice"]["judged"]] == ["ridge", "kernel"]
    assert re.search(rf"method +{report['choice']['chosen']}", said)
    student = Student.load(tmp_path / "student")
    assert student.accuracy(enlarged(digits.unseen), digits.unseen_labels) == report["accuracy"]
    assert (tmp_path / "student" / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_saves_noisy_counts(
    terrine: Terrine, server: RunningServer, tmp_path: Path
) -> None:
    server.open_project(mechanism={"name": "noisy_votes", "sigma": 4.0}, epsilon=6.0)
    np.save(tmp_path / "few.npy", server.ensemble.unseen[:3])
    label = ("student", "label", tmp_path / "few.npy", "--out", tmp_path / "labels.npz")
    at = {"TERRINE_URL": server.url, "TERRINE_TOKEN": server.token()}
    terrine(*label, **at).fine  # noqa: B018 - asserts
    with np.load(tmp_path / "labels.npz", allow_pickle=False) as file:
        counts, labels, sigma = file["noisy_counts"], file["labels"], file["noise_sigma"]
    assert counts.shape == (3, 10)
    assert counts.argmax(axis=1).tolist() == labels.tolist()
    assert sigma == 4.0
    rows = ("student", "label", tmp_path / "few.npy", "--out", tmp_path / "labels.csv")
    terrine(*rows, **at).fine  # noqa: B018 - asserts
    with (tmp_path / "labels.csv").open(newline="") as written:
        listed = list(csv.DictReader(written))
    assert [row["label"] for row in listed] == [str(label) for label in labels]
    assert [int(row["count_9"]) for row in listed] == counts[:, 9].tolist()


@pytest.mark.parametrize(
    ("public", "url", "token", "message"),
    [
        ("missing.npy", "http://127.0.0.1:9", {"TERRINE_TOKEN": "terrine_x"}, "missing.npy"),
        ("pool.npy", "http://127.0.0.1:9", {}, "TERRINE_TOKEN"),
        ("pool.npy", "nonsense", {"TERRINE_TOKEN": "x"}, "URL"),
    ],
)
def test_a_wrong_command_says_what_is_wrong(
    terrine: Terrine, tmp_path: Path, public: str, url: str, token: dict[str, str], message: str
) -> None:
    np.save(tmp_path / "pool.npy", np.zeros((4, 8, 8), dtype=np.uint8))
    train = ("student", "--url", url, "train", tmp_path / public)
    holds(terrine(*train, **token).refused, message)


# By day test_choice.py shows that a choice is a function of these.
@pytest.mark.nightly
def test_the_choice_uses_bought_labels_and_public_inputs_only(
    server: RunningServer, tmp_path: Path
) -> None:
    server.open_project(mechanism=CONFIDENT, epsilon=AMPLE)
    digits = server.ensemble
    wrong = (digits.unseen, (digits.unseen_labels + 1) % 10)
    made = []
    with Client(server.url, server.token()) as client:
        for name, held_out in (("a", (digits.unseen, digits.unseen_labels)), ("b", wrong)):
            options: dict[str, Any] = {"held_out": held_out, "rounds": 1, "queries": 40}
            made.append(distill(client, digits.public, tmp_path / name, **options))
    first, second = made
    assert first.report.choice == second.report.choice
    assert first.report.choice.folds > 1
    assert (
        first.student.predict_indices(digits.unseen)
        == second.student.predict_indices(digits.unseen)
    ).all()
    assert first.report.accuracy != second.report.accuracy


def test_inputs_on_which_no_teacher_agrees_teach_nothing_and_say_so(
    server: RunningServer, tmp_path: Path
) -> None:
    server.open_project(mechanism={**CONFIDENT, "threshold": 40, "sigma1": 2.0}, epsilon=50.0)
    digits = server.ensemble
    votes = Ensemble.load(digits.directory).votes(digits.unseen).max(1)
    disputed = digits.unseen[votes.argsort()[:3]]
    with Client(server.url, server.token()) as client, refuses(DistillError, "labelled"):
        distill(client, disputed, tmp_path / "s", training=QUICK, rounds=1)
