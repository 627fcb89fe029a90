"""A mechanism of another package, found by its entry point, from opening to verifying."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from pydantic import TypeAdapter, ValidationError

from support.databases import SECRET_KEY, migrated
from support.dp_events import dp_event, dp_events
from support.ledgers import FACTS
from support.wording import holds, refuses
from terrine_protocol import MechanismSpec, ProjectOpen
from terrine_server.cli.ledger import _note_missing_package
from terrine_server.errors import EnsembleUnavailable, InvalidTerms
from terrine_server.labeling import strategies
from terrine_server.labeling.strategies import mechanism_of
from terrine_server.ledger import Ledger
from terrine_server.owner.operations import open_project, verify_project
from terrine_server.planning.expected import Consensus, Votes, expected_outcomes
from terrine_server.planning.simulation import simulate
from terrine_server.privacy import Account, ParameterError, VoteOutcome, build_mechanism, cap
from terrine_server.privacy.mechanisms.registration import NoisyTest, OutcomeLaw

PAGE = Path(__file__).parents[2] / "docs/own-mechanisms.md"
IMPORTS = """
import os
from dataclasses import dataclass
import numpy as np
from terrine_server.privacy.events import GaussianNoisyMax
from terrine_server.privacy.mechanisms.base import Released, VoteOutcome
from terrine_server.privacy.noise import discrete_gaussian, noisy_max
from terrine_server.privacy.numbers import full_tallies
"""
MISNAMED = """
class Misnamed(Rounded):
    name = "acme.other"
"""
SPEC = {"name": "acme.rounded", "sigma": 400.0}


def install(directory: Path, entry: str = "acme.rounded = acme_votes:Rounded") -> None:
    """Write what pip would install of a small package."""
    directory.mkdir(exist_ok=True)
    shown = PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    (directory / "acme_votes.py").write_text(IMPORTS + shown + MISNAMED, encoding="utf-8")
    info = directory / "acme_votes-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-votes\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[terrine.mechanisms]\n{entry}\n")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    install(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delitem(sys.modules, "acme_votes", raising=False)
    return tmp_path / "site"


@pytest.mark.usefixtures("installed")
def test_it_answers_at_the_price_of_its_events() -> None:
    mechanism = build_mechanism(SPEC, teachers=250, classes=10)
    alike = build_mechanism({"name": "noisy_votes", "sigma": 40.0}, teachers=250, classes=10)
    votes = np.tile([250, *[0] * 9], (300, 1))
    random = np.random.default_rng(0)
    found = simulate(votes, mechanism, 1.0, 1e-5, entropy=random.bytes)
    assert (found.labels >= 0).sum() == found.terms.affordable(Account()) > 0
    theirs = simulate(votes, alike, 1.0, 1e-5).terms
    assert found.terms.worst.cost == pytest.approx(theirs.worst.cost, rel=1e-3)


@pytest.mark.usefixtures("installed")
def test_one_that_says_its_law_is_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = build_mechanism(SPEC, teachers=250, classes=10)
    votes = Votes.synthetic([Consensus(0.9)], teachers=250, classes=10)
    with refuses(ParameterError, "acme.rounded"):
        expected_outcomes(mechanism, votes)
    law = OutcomeLaw(test=NoisyTest(votes.counts.max(axis=1), 225, 40.0))
    monkeypatch.setattr(type(mechanism), "outcome_law", lambda *_: law, raising=False)
    assert expected_outcomes(mechanism, votes).answered == pytest.approx(0.5, abs=0.01)


def test_its_project_is_served_and_verified_and_verifies_without_it(
    installed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine = migrated(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    ledger = Ledger(engine, SECRET_KEY)
    ledger.ensembles.register("votes", "ensembles/votes", "ab" * 32, FACTS, 1000, cap(4.0, 1e-5))
    terms = {"name": "study", "ensemble": "votes", "epsilon": 2.0, "delta": 1e-6}
    wanted = ProjectOpen.model_validate({**terms, "mechanism": SPEC})
    record = open_project(ledger, wanted)
    assert mechanism_of(record).name == "acme.rounded"
    _note_missing_package(ledger, "study")
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(installed)])
    assert verify_project(ledger, "study").ok
    _note_missing_package(ledger, "study")
    said = capsys.readouterr().out
    holds(said, "acme.rounded")
    holds(said, "answered")
    strategies._mechanism.cache_clear()
    with refuses(EnsembleUnavailable, "acme.rounded"):
        mechanism_of(record)
    with refuses(InvalidTerms, "terrine.mechanisms"):
        open_project(ledger, wanted.model_copy(update={"name": "second"}))
    engine.dispose()


def test_what_is_wrong_with_one_is_said(installed: Path) -> None:
    with refuses(ParameterError, "acme.rounded"):
        build_mechanism({"name": "acme.rounded", "gamma": 1.0}, teachers=9, classes=2)
    for entry, why in (
        ("acme.rounded = acme_votes:Missing", "acme.rounded loaded"),
        ("acme.rounded = acme_votes:Misnamed", "acme.rounded another's"),
    ):
        install(installed, entry)
        with refuses(ParameterError, *why.split()):
            build_mechanism(SPEC, teachers=9, classes=2)
    parsed = TypeAdapter[MechanismSpec](MechanismSpec)
    assert parsed.validate_python(SPEC).model_dump() == SPEC
    for wrong in ({"name": "gnmaks"}, {"name": "Acme.x"}, {"name": "acme.x", "sigma": [1]}):
        with pytest.raises(ValidationError):
            parsed.validate_python(wrong)


SPECS = (
    {"name": "gnmax", "sigma": 40.0},
    {"name": "noisy_votes", "sigma": 40.0},
    {"name": "lnmax", "gamma": 0.05},
    {"name": "confident_gnmax", "threshold": 200, "sigma1": 100.0, "sigma2": 40.0},
)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: str(spec["name"]))
def test_events_of_dp_accounting_bound_what_we_charge(spec: dict[str, object]) -> None:
    """Its accountant, of tighter composition and looser releases, agrees with our ε."""
    mechanism = build_mechanism(spec, teachers=250, classes=10)
    votes = np.tile([240, 10, *[0] * 8], (60, 1))
    random = np.random.default_rng(1)
    found = simulate(votes, mechanism, 8.0, 1e-5, entropy=random.bytes)
    events = mechanism.events()
    tally = {
        events[outcome]: int((found.outcomes == outcome.value).sum())
        for outcome in events
        if (found.outcomes == outcome.value).any()
    }
    theirs = PLDAccountant(value_discretization_interval=1e-3).compose(dp_events(tally))
    ratio = found.epsilon / theirs.get_epsilon(1e-5)
    assert 0.6 < ratio < 1.4
    if spec["name"] == "noisy_votes":  # where both know all that is released
        assert ratio == pytest.approx(1, rel=0.01)


def test_what_dp_accounting_cannot_say_is_refused() -> None:
    stable = build_mechanism(
        {"name": "stable", "sigma": 10.0, "delta_per_query": 1e-7}, teachers=200, classes=2
    )
    with refuses(ParameterError, "δ"):
        dp_event(stable.events()[VoteOutcome.ANSWERED])
