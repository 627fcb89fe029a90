"""`terrine plan` and `terrine price` on the command line."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from books import CONFIDENT, EPOCHS, LNMAX, abstained, answered, open_ledger, open_project
from commands import Terrine
from migrated import SECRET_KEY

from terrine_server.cli.picture import STYLES
from terrine_server.ledger import ProjectRecord
from terrine_server.planning.accountants import Method
from terrine_server.planning.plan import DATA_DEPENDENT, JOINT


@pytest.fixture
def terrine(terrine: Terrine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Terrine:
    """The command, run in its own directory, which is also the data directory."""
    monkeypatch.setenv("TERRINE_DATA_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return terrine


SMALL = ("gnmax", "--teachers", "100", "--grid", "sigma=0.1n,20", "--epsilon", "2")


@pytest.fixture
def votes_file(tmp_path: Path) -> Path:
    counts = np.array([[90, 10, 0], [0, 80, 20], [50, 50, 0], [0, 0, 100]], dtype=np.uint8)
    path = tmp_path / "votes.npz"
    np.savez(path, counts=counts, labels=np.array([0, 1, 1, 2], dtype=np.uint8))
    return path


# -------------------------------------------------------------------------------------- plan


def test_a_plan_shows_every_rule_and_the_command_to_type(terrine: Terrine) -> None:
    output = terrine("plan", *SMALL).fine
    for name in ("classic RDP", "improved RDP", "fixed-order RDP, enforced", "GDP"):
        assert name in output
    assert "terrine project open NAME --ensemble ENSEMBLE --mechanism gnmax:sigma=20" in output
    assert "Data-dependent accounting" in output


def test_a_plan_of_noisy_counts_says_that_they_cost_as_much(terrine: Terrine) -> None:
    output = terrine("plan", "noisy_votes", *SMALL[1:]).fine
    assert "Noisy counts cost what gnmax costs at the same σ under GDP" in output
    assert "Data-dependent accounting is not for noisy counts" in output
    assert "terrine project open NAME --ensemble ENSEMBLE --mechanism noisy_votes" in output
    assert "Noisy counts" not in terrine("plan", *SMALL).fine


def test_project_open_accepts_the_recommended_command(terrine: Terrine) -> None:
    from terrine_protocol import ProjectOpen
    from terrine_server.cli.mechanism import parse_mechanism
    from terrine_server.cli.project import open_project as command
    from terrine_server.planning.opening import choose
    from terrine_server.privacy import Rule, build_mechanism, cap_order

    for name in ("confident_gnmax", "stable", "noisy_votes"):
        output = terrine("--json", "plan", name, "--teachers", "500", "--answers", "40")
        document = json.loads(output.fine)
        words = shlex.split(document["command"])
        assert words[:3] == ["terrine", "project", "open"]
        given = dict(zip(words[4::2], words[5::2], strict=True))
        options = {key.removeprefix("--").replace("-", "_"): value for key, value in given.items()}
        assert options.keys() <= set(command.__annotations__) - {"name"}
        epsilon, delta = float(options.pop("epsilon")), float(options.pop("delta"))
        mechanism = parse_mechanism(options.pop("mechanism"))
        rate = float(options.pop("expected_pass_rate", "1"))
        assert options == {"ensemble": "ENSEMBLE"}
        request = ProjectOpen.model_validate(
            {
                "name": "study",
                "ensemble": "mnist",
                "mechanism": mechanism,
                "epsilon": epsilon,
                "delta": delta,
                "expected_pass_rate": rate,
            }
        )
        spec = request.mechanism.model_dump(exclude_none=True)
        built = build_mechanism(spec, teachers=500, classes=10)
        cap_rule = Rule("rdp", cap_order(epsilon, delta))
        quoted = choose(
            built, epsilon, delta, cap_rule=cap_rule, pass_rate=request.expected_pass_rate
        )
        # What was planned is what is bought: as many answers as were wanted.
        assert quoted.answers >= 40


def test_json_and_table_agree_and_the_json_is_valid(terrine: Terrine) -> None:
    document = json.loads(terrine("--json", "plan", *SMALL).fine)
    output = terrine("plan", *SMALL).fine
    assert document["votes"] == "assumed"
    assert document["epsilon"] == 2
    for line in document["lines"]:
        assert f"{line['queries']:,}" in output
        assert line["name"] in output
    # More answers than δ allows need an infinite ε, and JSON has no infinity.
    stable = ("plan", "stable", "--teachers", "500", "--epsilon", "90", "--answers", "300")
    text = terrine("--json", *stable, "--grid", "delta_per_query=1e-9", "--grid", "sigma=10").fine
    assert "Infinity" not in text
    json.loads(text)


def test_a_picture_is_drawn(terrine: Terrine, tmp_path: Path) -> None:
    picture = tmp_path / "plan.png"
    assert f"Drew {picture}" in terrine("plan", *SMALL, "--picture", str(picture)).fine
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(data) > 20_000
    wrong = terrine("plan", *SMALL, "--picture", str(tmp_path / "plan.jpg")).refused
    assert "PNG" in wrong


def test_every_way_of_accounting_has_a_colour_and_a_style_of_its_own() -> None:
    assert set(STYLES) == {*(method.value for method in Method), JOINT, DATA_DEPENDENT}
    colours, styles = zip(*STYLES.values(), strict=True)
    assert len(set(colours)) == len(set(styles)) == len(STYLES)


def test_public_votes_can_be_planned_with_and_their_labels_count(
    terrine: Terrine, votes_file: Path
) -> None:
    given = ("plan", "gnmax", "--votes", str(votes_file), "--epsilon", "2", "--grid", "sigma=5")
    document = json.loads(terrine("--json", *given, "--votes-are", "public").fine)
    assert document["votes"] == "public"
    assert document["labelled"]
    assert document["chosen"]["teachers"] == 100
    # Three queries are certain; the tied one is right half the time, less the ties it loses.
    assert 0.85 < document["chosen"]["accuracy"] < 0.88
    assert "agree with the labels" in terrine(*given, "--votes-are", "synthetic").fine


def test_private_votes_need_an_explicit_option_and_get_a_warning(
    terrine: Terrine, votes_file: Path
) -> None:
    given = ("plan", "gnmax", "--votes", str(votes_file), "--epsilon", "2", "--grid", "sigma=5")
    assert "trained on" in terrine(*given).refused
    assert "no budget accounts for that" in terrine(*given, "--votes-are", "private").refused
    acknowledged = terrine("--json", *given, "--votes-are", "private", "--acknowledge-leak")
    assert json.loads(acknowledged.fine)["votes"] == "private"
    assert "PRIVATE" in acknowledged.err
    assert "not differentially private" in acknowledged.err.replace("\n", " ")


def test_several_ensembles_are_compared(terrine: Terrine) -> None:
    grid = ("--grid", "sigma=0.1n")
    output = terrine("--json", "plan", "gnmax", "--teachers", "100,400", "--answers", "100", *grid)
    document = json.loads(output.fine)
    assert {each["teachers"] for each in document["candidates"]} == {100, 400}
    assert {each["spec"]["sigma"] for each in document["candidates"]} == {10, 40}
    assert document["chosen"]["teachers"] == 400


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gnmax", "--epsilon", "2"), "how many teachers"),
        (("gnmax", "--teachers", "100"), "Give the epsilon"),
        (("gnmax", "--teachers", "many", "--epsilon", "2"), "whole numbers"),
        (("gnmax", "--teachers", "0", "--epsilon", "2"), "teachers = 0"),
        (("gmax", "--teachers", "100", "--epsilon", "2"), "No mechanism is called"),
        ((*SMALL, "--consensus", "high"), "consensus is given by numbers"),
        ((*SMALL, "--consensus", "0.01"), "consensus = 0.01"),
        ((*SMALL, "--grid", "sigma=wide"), "--grid takes"),
        ((*SMALL, "--grid", "threshold=3"), "no parameter threshold"),
        ((*SMALL, "--votes-are", "public"), "there is no --votes"),
        (("interactive_gnmax", "--teachers", "100", "--epsilon", "2"), "--student-accuracy"),
        (("gnmax", "--teachers", "100", "--epsilon", "2", "--delta", "1.5"), "delta = 1.5"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(
    terrine: Terrine, arguments: tuple[str, ...], message: str
) -> None:
    assert message in terrine("plan", *arguments).refused.replace("\n", " ")


@pytest.mark.parametrize(
    ("arrays", "sizes", "message"),
    [
        ({"votes": np.ones((2, 2), dtype=np.int64)}, "2", "no array `counts`"),
        ({"counts": np.array([[90, 10], [80, 10]])}, "100", "sum to 100"),
        ({"counts": np.array([[90.0, 10.0]])}, "100", "integers"),
        ({"counts": np.array([[100]])}, "100", "m ≥ 2"),
        ({"counts": np.array([[90, 10]])}, "100,200", "one ensemble"),
        ({"counts": np.array([[90, 10]], dtype=object)}, "100", "plain arrays"),
    ],
)
def test_an_invalid_votes_file_is_refused(
    terrine: Terrine, tmp_path: Path, arrays: dict[str, np.ndarray], sizes: str, message: str
) -> None:
    path = tmp_path / "votes.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    given = ("--votes", str(path), "--votes-are", "public", "--teachers", sizes)
    assert message in terrine("plan", "gnmax", "--epsilon", "2", *given).refused.replace("\n", " ")


def test_a_file_that_is_not_an_npz_is_refused(terrine: Terrine, tmp_path: Path) -> None:
    path = tmp_path / "votes.npz"
    given = ("plan", "gnmax", "--epsilon", "2", "--votes", str(path), "--votes-are", "public")
    assert "votes.npz" in terrine(*given).refused
    path.write_text("counts,labels\n")
    assert "not an .npz" in terrine(*given).refused.replace("\n", " ")


# ------------------------------------------------------------------------------------- price


@pytest.fixture
def study(terrine: Terrine, tmp_path: Path) -> ProjectRecord:
    """A project that paid for 60 answers and 40 abstentions, in the data directory."""
    (tmp_path / "secret.key").write_bytes(SECRET_KEY)
    assert terrine("init").code == 0
    ledger = open_ledger(f"sqlite:///{tmp_path / 'terrine.sqlite'}")
    project = open_project(ledger, 200, CONFIDENT)
    paid = [answered(k) if k % 5 < 3 else abstained(k) for k in range(100)]
    return ledger.charge(project.id, paid).project


def test_a_ledger_is_priced_under_every_rule(terrine: Terrine, study: ProjectRecord) -> None:
    document = json.loads(terrine("--json", "price", "study").fine)
    assert document["charges"] == 100
    assert document["outcomes"] == {"answered": 60, "abstained": 40}
    assert document["enforced"] == "GDP"
    rules = {rule["rule"]: rule for rule in document["rules"]}
    assert set(rules) == {"classic RDP", "improved RDP", "fixed-order RDP", "GDP"}
    spent = study.terms.epsilon_spent(study.spent)
    assert rules["GDP"]["epsilon"] == pytest.approx(spent, rel=1e-6)
    assert rules["GDP"]["epsilon"] < rules["improved RDP"]["epsilon"]
    assert rules["improved RDP"]["epsilon"] < rules["classic RDP"]["epsilon"]
    output = terrine("price", "study").fine
    assert "GDP, enforced" in output
    assert "40 abstained, 60 answered" in output


def test_an_export_is_priced_like_the_ledger_it_came_from(
    terrine: Terrine, study: ProjectRecord, tmp_path: Path
) -> None:
    path = str(tmp_path / "study.json")
    assert terrine("ledger", "export", "study", "--output", path).code == 0
    terms = study.terms
    budget = ("--epsilon", repr(terms.epsilon), "--delta", repr(terms.delta))
    mine = json.loads(terrine("--json", "price", "study").fine)
    theirs = json.loads(terrine("price", "--file", path, *budget).fine)
    assert theirs == mine
    # Without an ε the budget is the spend itself: the enforced rule buys what was bought.
    alone = terrine("--json", "price", "--file", path, "--delta", "1e-6")
    rules = {rule["rule"]: rule for rule in json.loads(alone.fine)["rules"]}
    assert rules["GDP"]["queries"] in (99, 100, 101)


def test_pure_mechanisms_are_also_priced_by_basic_composition(
    terrine: Terrine, tmp_path: Path
) -> None:
    (tmp_path / "secret.key").write_bytes(SECRET_KEY)
    assert terrine("init").code == 0
    ledger = open_ledger(f"sqlite:///{tmp_path / 'terrine.sqlite'}")
    project = open_project(ledger, 20, LNMAX)
    ledger.charge(project.id, [answered(k) for k in range(20)])
    document = json.loads(terrine("--json", "price", "study").fine)
    rules = {rule["rule"]: rule for rule in document["rules"]}
    assert document["enforced"] == "fixed-order RDP"
    assert document["order"] == project.terms.rule.order
    assert rules["basic"]["epsilon"] == pytest.approx(20 * 2 * 0.05)
    assert rules["basic"]["sound"]


def test_epochs_are_opened_and_priced_from_the_command_line(
    terrine: Terrine, tmp_path: Path
) -> None:
    (tmp_path / "secret.key").write_bytes(SECRET_KEY)
    assert terrine("init").code == 0
    ledger = open_ledger(f"sqlite:///{tmp_path / 'terrine.sqlite'}")
    mechanism = "stable_svt:epsilon_per_epoch=1,delta_per_query=1e-10,answers_per_epoch=3"
    terms = ["--ensemble", "mnist", "--epsilon", 6, "--delta", 1e-6]
    opened = terrine("project", "open", "study", "--mechanism", mechanism, *terms)
    assert "answers_per_epoch 3" in opened.fine
    project = ledger.project("study")
    assert project.mechanism == EPOCHS
    for request in range(2):
        epochs = [answered((request, k), epoch=0) for k in range(3)]
        ledger.charge(project.id, [*epochs, abstained((request, 3), epoch=1)])
    document = json.loads(terrine("--json", "price", "study").fine)
    rules = {rule["rule"]: rule for rule in document["rules"]}
    assert document["enforced"] == "fixed-order RDP"
    assert document["outcomes"] == {"answered": 6, "abstained": 2}
    assert rules["basic"]["epsilon"] == pytest.approx(4 * 1.0)  # four epochs, eight queries in all
    path = str(tmp_path / "some.json")
    assert terrine("ledger", "export", "study", "--output", path).code == 0
    within = [line for line in Path(path).read_text().splitlines() if "composition" not in line]
    Path(path).write_text("\n".join(within) + "\n")
    output = terrine("price", "--file", path, "--epsilon", "8", "--delta", "1e-5").refused
    assert "Nothing was charged" in output


def test_a_ledger_that_cannot_be_priced_is_explained(
    terrine: Terrine, study: ProjectRecord, tmp_path: Path
) -> None:
    assert "Name a project" in terrine("price").refused
    assert "Name a project" in terrine("price", "study", "--file", "x").refused
    assert "no project" in terrine("price", "nobody").refused
    assert "own ε and δ" in terrine("price", "study", "--delta", "1e-5").refused
    path = tmp_path / "export.json"
    assert "give --delta" in terrine("price", "--file", str(path)).refused
    assert "export.json" in terrine("price", "--file", str(path), "--delta", "1e-5").refused
    for text, message in [
        ("", "has no entries"),
        ("seq,cost\n1,2\n", "line 1: not a ledger entry"),
        ('{"event": {"event": "magic"}, "outcome": "answered"}\n', "line 1: not a ledger entry"),
        (
            '{"project": "a", "outcome": "answered", "event": {"event": "magic"}}\n',
            "Not a cost event",
        ),
    ]:
        path.write_text(text)
        output = terrine("price", "--file", str(path), "--delta", "1e-5").refused
        assert message in output.replace("\n", " ")


def test_an_empty_ledger_has_nothing_to_price(terrine: Terrine, tmp_path: Path) -> None:
    assert "terrine init" in terrine("price", "study").refused.replace("\n", " ")
    (tmp_path / "secret.key").write_bytes(SECRET_KEY)
    assert terrine("init").code == 0
    open_project(open_ledger(f"sqlite:///{tmp_path / 'terrine.sqlite'}"), 5)
    assert "no charges yet" in terrine("price", "study").refused


def test_exports_of_two_projects_are_not_added_up(terrine: Terrine, tmp_path: Path) -> None:
    event = {"event": "gaussian_noisy_max", "sigma": 40.0, "shift": 1}
    entry = {"outcome": "answered", "event": event}
    lines = [json.dumps(entry | {"project": name}) for name in ("a", "b")]
    (tmp_path / "both.json").write_text("\n".join(lines) + "\n")
    output = terrine("price", "--file", str(tmp_path / "both.json"), "--delta", "1e-5").refused
    assert "entries of a, b" in output
