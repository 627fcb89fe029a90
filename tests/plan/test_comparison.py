"""`terrine plan` without a mechanism, and by what is certain."""

from __future__ import annotations

import json

import pytest
from commands import Terrine

from terrine_server.planning.comparison import Rows, compare
from terrine_server.planning.forecast import Consensus, Votes
from terrine_server.planning.opening import choose
from terrine_server.planning.plan import plan
from terrine_server.privacy import Account, ParameterError, Rule, build_mechanism, cap_order

VOTES = Votes.synthetic([Consensus(0.9, 1, 0.5)], teachers=100, classes=10)
SMALL = ("--teachers", "100", "--epsilon", "2")


def test_each_mechanism_takes_part_with_its_own_best_plan() -> None:
    found = compare([VOTES], delta=1e-5, epsilon=2.0, student_accuracy=0.8, rows=Rows(500, 20))
    plans = {str(each.plan.chosen.spec["name"]): each for each in found}
    assert set(plans) == {
        "confident_gnmax",
        "interactive_gnmax",
        "gnmax",
        "lnmax",
        "stable",
        "noisy_votes",
    }
    for name in ("gnmax", "confident_gnmax"):
        assert plans[name].plan.chosen == plan(name, [VOTES], delta=1e-5, epsilon=2.0).chosen
    labels = found[:-1]
    assert [each.right for each in labels] == sorted((e.right for e in labels), reverse=True)
    counted = found[-1]
    assert counted.plan.chosen.queries is not None
    assert counted.plan.chosen.queries >= 500
    sigma = float(str(counted.plan.chosen.spec["sigma"]))
    assert counted.fitted_noise == pytest.approx(sigma / 100 * (20 / 500) ** 0.5)


def test_a_mechanism_that_affords_nothing_is_left_out_and_none_is_an_error() -> None:
    few = Votes.synthetic([Consensus(0.9, 1, 0.5)], teachers=20, classes=10)
    assert "stable" not in [
        e.plan.chosen.spec["name"] for e in compare([few], delta=1e-5, epsilon=1)
    ]
    with pytest.raises(ParameterError):
        compare([few], delta=1e-12, epsilon=0.001)


def test_a_plan_for_certain_queries_chooses_one_price_for_both_outcomes() -> None:
    """And a project that is opened so is certain of as many queries."""
    expected = plan("confident_gnmax", [VOTES], delta=1e-5, epsilon=2.0)
    certain = plan("confident_gnmax", [VOTES], delta=1e-5, epsilon=2.0, certain=True)
    assert certain.chosen.spec["answer_share"] == 1.0
    assert certain.chosen.queries is not None
    assert certain.chosen.queries > 2 * expected.quotes[0].considered.queries
    opened = choose(
        build_mechanism(certain.chosen.spec, teachers=100, classes=10),
        2.0,
        1e-5,
        cap_rule=Rule("rdp", cap_order(2.0, 1e-5)),
    )
    assert opened.terms.affordable(Account()) >= certain.chosen.queries
    for wrong in ({"epsilon": None, "answers": 10}, {"epsilon": 1.0, "answers": 10}):
        with pytest.raises(ParameterError, match="for an epsilon alone"):
            plan("gnmax", [VOTES], delta=1e-5, certain=True, **wrong)


def test_the_command_compares_and_names_what_to_type(terrine: Terrine) -> None:
    output = terrine("plan", *SMALL, "--rows", "500").fine
    for name in ("confident_gnmax", "gnmax", "lnmax", "stable", "noisy_votes"):
        assert name in output
    assert "terrine project open NAME --ensemble ENSEMBLE --mechanism confident_gnmax" in output
    assert "each of 500 rows" in output
    assert "standard error of a share" in output
    assumed = terrine("plan", *SMALL, "--features", "20").fine
    assert "each of 10,000 rows with noisy counts. Fitted to 20 features" in assumed
    assert "± " in assumed
    listed = json.loads(terrine("--json", "plan", *SMALL, "--by", "certain").fine)
    best = next(p for p in listed if p["chosen"]["spec"]["name"] == "confident_gnmax")
    assert ",answer_share=1 " in best["command"]
    assert "queries at least" in terrine("plan", "confident_gnmax", *SMALL, "--by", "certain").fine


@pytest.mark.parametrize(
    "given",
    [
        ("--teachers", "100", "--answers", "5"),
        (*SMALL, "--answers", "5"),
        (*SMALL, "--grid", "sigma=5"),
        (*SMALL, "--picture", "plan.png"),
    ],
)
def test_what_is_for_one_mechanism_needs_its_name(terrine: Terrine, given: tuple[str, ...]) -> None:
    assert "name it, as in terrine plan confident_gnmax" in terrine("plan", *given).refused
