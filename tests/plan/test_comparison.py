"""`terrine plan` without a mechanism, and by what is certain."""

from __future__ import annotations

import json

import pytest

from support.processes import Terrine
from support.wording import holds
from terrine_server.planning.expected import Consensus, Votes
from terrine_server.planning.opening import choose
from terrine_server.planning.plan import compare, plan
from terrine_server.privacy import Account, ParameterError, Rule, build_mechanism, cap_order

VOTES = Votes.synthetic([Consensus(0.9, 1, 0.5)], teachers=100, classes=10)
SMALL = ("--teachers", "100", "--epsilon", "2")


@pytest.fixture(autouse=True)
def _coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search over less noise and more, of which any parameters will do."""
    monkeypatch.setattr(
        "terrine_server.privacy.mechanisms.registration.NOISE_SHARES", (0.02, 0.06, 0.2)
    )


def test_each_mechanism_takes_part_with_its_own_best_plan() -> None:
    found = compare([VOTES], delta=1e-5, epsilon=2.0)
    plans = {str(each.chosen.spec["name"]): each for each in found}
    assert set(plans) == {"confident_gnmax", "gnmax", "lnmax", "stable"}
    for name in ("gnmax", "confident_gnmax"):
        assert plans[name].chosen == plan(name, [VOTES], delta=1e-5, epsilon=2.0).chosen
    assert [each.right for each in found] == sorted((e.right for e in found), reverse=True)


def test_a_mechanism_that_affords_nothing_is_left_out_and_none_is_an_error() -> None:
    few = Votes.synthetic([Consensus(0.9, 1, 0.5)], teachers=20, classes=10)
    afforded = compare([few], delta=1e-5, epsilon=1)
    assert "stable" not in [each.chosen.spec["name"] for each in afforded]
    with pytest.raises(ParameterError):
        compare([few], delta=1e-12, epsilon=0.001)


def test_one_price_for_both_outcomes_makes_more_queries_certain() -> None:
    given = {"threshold": [50.0], "sigma1": [20.0], "sigma2": [15.0]}
    flat_too = given | {"answer_share": [1.0]}
    divided = plan("confident_gnmax", [VOTES], epsilon=2.0, delta=1e-5, grid=lambda _: given)
    flat = plan("confident_gnmax", [VOTES], epsilon=2.0, delta=1e-5, grid=lambda _: flat_too)
    assert flat.chosen.spec["answer_share"] == 1.0
    certain = flat.quotes[0].considered.queries
    assert certain > divided.quotes[0].considered.queries
    opened = choose(
        build_mechanism(flat.chosen.spec, teachers=100, classes=10),
        2.0,
        1e-5,
        cap_rule=Rule("rdp", cap_order(2.0, 1e-5)),
    )
    assert opened.terms.affordable(Account()) >= certain


def test_the_command_compares_and_names_what_to_type(terrine: Terrine) -> None:
    output = terrine("plan", *SMALL).fine
    for name in ("confident_gnmax", "gnmax", "lnmax", "stable"):
        holds(output, name)
    assert "terrine project open NAME --ensemble ENSEMBLE --mechanism confident_gnmax" in output
    holds(output, "one", "by")  # what it ranks by
    listed = json.loads(terrine("--json", "plan", *SMALL).fine)
    assert listed[0]["chosen"]["spec"]["name"] == "confident_gnmax"
