"""`terrine plan` on the command line."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from support.processes import Terrine
from support.wording import holds


@pytest.fixture
def terrine(terrine: Terrine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Terrine:
    """The command, run in its own directory, which is also the data directory.

    Plans search over less noise and more, of which any parameters will do.
    """
    monkeypatch.setattr(
        "terrine_server.privacy.mechanisms.registration.NOISE_SHARES", (0.02, 0.06, 0.2)
    )
    monkeypatch.setenv("TERRINE_DATA_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return terrine


SMALL = ("gnmax:sigma=20", "--teachers", "100", "--epsilon", "2")


@pytest.fixture
def votes_file(tmp_path: Path) -> Path:
    counts = np.array([[90, 10, 0], [0, 80, 20], [50, 50, 0], [0, 0, 100]], dtype=np.uint8)
    path = tmp_path / "votes.npz"
    np.savez(path, counts=counts, labels=np.array([0, 1, 1, 2], dtype=np.uint8))
    return path


# -------------------------------------------------------------------------------------- plan


def test_a_plan_shows_every_rule_and_the_command_to_type(terrine: Terrine) -> None:
    output = terrine("plan", *SMALL).fine
    for name in ("Rényi DP at order", "Gaussian DP"):
        holds(output, *name.split())
    assert "terrine project open NAME --ensemble ENSEMBLE --mechanism gnmax:sigma=20" in output
    holds(output, "Data-dependent", "accounting")


def test_a_plan_of_noisy_counts_pays_for_every_row(terrine: Terrine) -> None:
    given = ("--teachers", "100", "--epsilon", "2", "--rows", "500")
    output = terrine("plan", "noisy_votes", *given).fine
    holds(output, 500, "rows", "noisy")
    assert "terrine project open NAME --ensemble ENSEMBLE --mechanism noisy_votes" in output
    found = json.loads(terrine("--json", "plan", "noisy_votes", *given).fine)
    assert found["quotes"][0]["queries"] >= 500
    stated = json.loads(terrine("--json", "plan", "noisy_votes:sigma=90", *given).fine)
    assert stated["chosen"]["spec"]["sigma"] == 90


def test_the_parameters_that_are_not_stated_are_searched_for(terrine: Terrine) -> None:
    given = ("confident_gnmax:sigma1=20,answer-share=1", *SMALL[1:])
    found = json.loads(terrine("--json", "plan", *given).fine)
    specs = [each["spec"] for each in found["candidates"]]
    assert {(each["sigma1"], each["answer_share"]) for each in specs} == {(20, 1)}
    assert len({each["threshold"] for each in specs}) > 2
    asked = terrine("plan", "interactive_gnmax:threshold=30", *SMALL[1:]).fine
    holds(asked, "interactive_gnmax", 100)


def test_project_open_accepts_the_recommended_command(terrine: Terrine) -> None:
    from terrine_protocol import ProjectOpen
    from terrine_server.cli.options import parse_mechanism
    from terrine_server.cli.project import open_project as command
    from terrine_server.planning.opening import choose
    from terrine_server.privacy import Rule, build_mechanism, cap_order

    for name in ("confident_gnmax", "stable", "noisy_votes"):
        output = terrine("--json", "plan", name, "--teachers", "500", "--epsilon", "2")
        document = json.loads(output.fine)
        words = shlex.split(document["command"])
        assert words[:3] == ["terrine", "project", "open"]
        given = dict(zip(words[4::2], words[5::2], strict=True))
        options = {key.removeprefix("--").replace("-", "_"): value for key, value in given.items()}
        assert options.keys() <= set(command.__annotations__) - {"name"}
        epsilon, delta = float(options.pop("epsilon")), float(options.pop("delta"))
        mechanism = parse_mechanism(options.pop("mechanism"))
        assert options == {"ensemble": "ENSEMBLE"}
        request = ProjectOpen.model_validate(
            {
                "name": "study",
                "ensemble": "mnist",
                "mechanism": mechanism,
                "epsilon": epsilon,
                "delta": delta,
            }
        )
        spec = request.mechanism.model_dump(exclude_none=True)
        built = build_mechanism(spec, teachers=500, classes=10)
        cap_rule = Rule("rdp", cap_order(epsilon, delta))
        opened = choose(built, epsilon, delta, cap_rule=cap_rule).considered
        planned = document["quotes"][0]
        # What was planned is what is bought.
        assert (opened.queries, opened.answer_share) == (
            planned["queries"],
            planned["answer_share"],
        )


def test_json_and_table_agree_and_the_json_is_valid(terrine: Terrine) -> None:
    document = json.loads(terrine("--json", "plan", *SMALL).fine)
    output = terrine("plan", *SMALL).fine
    assert document["votes"] == "assumed"
    assert document["epsilon"] == 2
    for quoted in document["quotes"]:
        assert f"{quoted['queries']:,}" in output


def test_public_votes_can_be_planned_with_and_their_labels_count(
    terrine: Terrine, votes_file: Path
) -> None:
    given = ("plan", "gnmax:sigma=5", "--votes", str(votes_file), "--epsilon", "2")
    document = json.loads(terrine("--json", *given, "--votes-are", "public").fine)
    assert document["votes"] == "public"
    assert document["labelled"]
    assert document["chosen"]["teachers"] == 100
    # Three queries are certain; the tied one is right half the time, less the ties it loses.
    assert 0.85 < document["chosen"]["accuracy"] < 0.88
    holds(terrine(*given, "--votes-are", "synthetic").fine, "labels")


def test_what_public_votes_show_is_in_the_command_and_what_is_left_below_it(
    terrine: Terrine, votes_file: Path
) -> None:
    stated = "confident_gnmax:threshold=80,sigma1=20,sigma2=15"
    assumed = terrine("plan", stated, "--teachers", "100", "--epsilon", "2").fine
    assert "--expected-pass-rate" not in assumed
    given = ("plan", stated, "--votes", str(votes_file), "--votes-are", "public", "--epsilon", "2")
    output = terrine(*given).fine
    document = json.loads(terrine("--json", *given).fine)
    rate, best = document["pass_rate"], document["quotes"][0]
    assert f"--expected-pass-rate {rate:g}" in document["command"]
    assert document["command"] in output
    assert 0 < best["answers"] <= 2 * best["fewer"] + 1
    holds(output, f"{best['answers']:,}", f"{int(best['fewer']):,}", f"{best['queries']:,}")


def test_private_votes_need_an_explicit_option_and_get_a_warning(
    terrine: Terrine, votes_file: Path
) -> None:
    given = ("plan", "gnmax:sigma=5", "--votes", str(votes_file), "--epsilon", "2")
    refused = terrine(*given).refused
    holds(refused, "budget")
    leak = refused.rstrip(".\n").split()[-1]
    acknowledged = terrine("--json", *given, "--votes-are", leak)
    assert json.loads(acknowledged.fine)["votes"] == leak
    assert "PRIVATE" in acknowledged.err
    holds(acknowledged.err.replace("\n", " "), "not", "differentially", "private")


def test_several_ensembles_are_compared(terrine: Terrine) -> None:
    given = ("gnmax:sigma=10", "--teachers", "100,400", "--epsilon", "2")
    document = json.loads(terrine("--json", "plan", *given).fine)
    assert {each["teachers"] for each in document["candidates"]} == {100, 400}
    assert {each["spec"]["sigma"] for each in document["candidates"]} == {10}
    assert [each["teachers"] for each in document["by_teachers"]] == [100, 400]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gnmax", "--epsilon", "2"), "teachers"),
        (("gnmax", "--teachers", "many", "--epsilon", "2"), "whole"),
        (("gnmax", "--teachers", "0", "--epsilon", "2"), "teachers 0"),
        (("gmax", "--teachers", "100", "--epsilon", "2"), "gmax"),
        ((*SMALL, "--consensus", "high"), "consensus numbers"),
        ((*SMALL, "--consensus", "0.01"), "consensus 0.01"),
        (("gnmax:sigma=wide", *SMALL[1:]), "sigma number"),
        (("gnmax:threshold=3", *SMALL[1:]), "threshold"),
        ((*SMALL, "--votes-are", "public"), "--votes"),
        (("gnmax", "--teachers", "100", "--epsilon", "2", "--delta", "1.5"), "delta 1.5"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(
    terrine: Terrine, arguments: tuple[str, ...], message: str
) -> None:
    holds(terrine("plan", *arguments).refused.replace("\n", " "), *message.split())


@pytest.mark.parametrize(
    ("arrays", "sizes", "message"),
    [
        ({"counts": np.array([[90, 10], [80, 10]])}, "100", "sum 100"),
        ({"counts": np.array([[90, 10]])}, "100,200", "one ensemble"),
    ],
)
def test_an_invalid_votes_file_is_refused(
    terrine: Terrine, tmp_path: Path, arrays: dict[str, np.ndarray], sizes: str, message: str
) -> None:
    path = tmp_path / "votes.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    given = ("--votes", str(path), "--votes-are", "public", "--teachers", sizes)
    refused = terrine("plan", "gnmax", "--epsilon", "2", *given).refused
    holds(refused.replace("\n", " "), *message.split())


def test_options_that_went_to_quickstart_are_named_there(terrine: Terrine) -> None:
    given = ("--public", "survey.csv", "--label", "ill", "--units", "4000")
    holds(terrine("plan", *given).refused, "--public", "quickstart", "--dry-run")
    holds(terrine("plan", "--teachers", "100", "--rows", "500").refused, "--rows")
