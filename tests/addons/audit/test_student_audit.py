"""Attacks on students: they succeed where there is no noise, and stay below the promise with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from support.processes import Terrine
from support.wording import holds
from terrine_addons.audit.findings import AuditFinding
from terrine_addons.audit.membership import (
    Guesses,
    Material,
    Students,
    _public,
    audit_students,
    digits,
    guess_by_calibrated_loss,
    guess_by_likelihood,
    guess_by_loss,
    sums_of,
    voters_of,
)
from terrine_models.data.arrays import DataError
from terrine_models.sums import SumMap
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.sums import add_up_records
from terrine_models.teachers.training import train_ensemble
from terrine_server.cli import app
from terrine_server.planning.first_project import (
    NeighbourProject,
    Setting,
    max_detection_rate,
    max_guess_accuracy,
    plan_map,
)
from terrine_server.privacy.noise import NoiseTable

LEVEL = 1e-3
COUNT = 48


@cache
def material() -> Material:
    return Material.of(digits(), epsilon=1.0, seed=0)


@cache
def trained_material() -> Material:
    """The same records, asked through trained teachers."""
    usual = material()
    setting = Setting.of(
        units=len(usual.second), rows=len(usual.pool), classes=10, epsilon=1.0
    ).of_teachers(40)
    data = usual.second
    kept = np.arange(20, len(data))
    random = np.random.default_rng(0)
    return Material._with_places(
        data, kept, np.arange(20), usual.pool, usual.tested, setting, random
    )


@cache
def added_material() -> Material:
    """The same records, of which sums are released."""
    usual = material()
    setting = Setting.of(units=len(usual.second), rows=len(usual.pool), classes=10, epsilon=1.0)
    norm, noise = plan_map(setting.epsilon, setting.delta, setting.classes, setting.units)
    known = SumMap.fit(usual.pool.spec, _public(usual.pool), norm, noise)
    project = setting.of_sums(norm=known.norm, features=known.width, map_sha256=known.sha256)
    return replace(usual, project=project)


def audit(found: Material, seed: int = 1) -> list[AuditFinding]:
    random = np.random.default_rng(seed)
    return list(audit_students(found, COUNT, LEVEL, random, entropy=random.bytes))


def attacks(findings: Sequence[AuditFinding]) -> list[AuditFinding]:
    return [each for each in findings if each.attack and not each.verdict.startswith("claim")]


class TestTheAttack:
    @pytest.mark.parametrize(
        "make", [material, pytest.param(added_material, marks=pytest.mark.nightly)]
    )
    def test_noise_keeps_it_below_the_promise_and_on_true_labels_it_succeeds(
        self, make: Callable[[], Material]
    ) -> None:
        findings = audit(make())
        assert all(each.passed for each in findings)
        assert len(attacks(findings)) == 6
        for each in attacks(findings):
            assert each.attack is not None
            assert each.attack.right < each.attack.right_allowed
        bare = findings[-1]
        assert bare.verdict == "claim refuted"
        assert bare.attack is not None
        assert bare.attack.right_limits[0] > bare.attack.right_allowed

    @pytest.mark.nightly
    @pytest.mark.parametrize("make", [material, added_material])
    def test_it_is_above_the_promise_if_the_noise_is_left_out(
        self, make: Callable[[], Material], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def none(table: NoiseTable, shape: tuple[int, ...], entropy: object) -> np.ndarray:
            return np.zeros(shape, np.int64)

        monkeypatch.setattr(NoiseTable, "sample", none)
        exceeded = [each for each in audit(make()) if each.verdict == "exceeded"]
        assert any("likelihood" in each.subject for each in exceeded)


class TestWorlds:
    def test_a_place_has_one_of_its_two_versions_and_the_others_never_change(self) -> None:
        found = material()
        first = np.arange(len(found.places)) % 2 == 0
        world = found.world(first)
        there, away = found.places[first], found.places[~first]
        assert (world.inputs[there] == found.first.inputs[there]).all()
        assert (world.labels[away] == found.second.labels[away]).all()
        rest = np.setdiff1d(np.arange(len(world)), found.places)
        assert (found.first.inputs[rest] == found.second.inputs[rest]).all()
        assert (found.first.labels[rest] == found.second.labels[rest]).all()

    def test_a_mislabelled_version_differs_in_its_label_alone_and_a_usual_one_is_another(
        self,
    ) -> None:
        found = material()
        changed = found.places[found.mislabelled]
        assert (found.first.inputs[changed] == found.second.inputs[changed]).all()
        assert (found.first.labels[changed] != found.second.labels[changed]).all()
        usual = found.places[~found.mislabelled]
        same = found.first.inputs[usual] == found.second.inputs[usual]
        assert not same.all(axis=(1, 2)).any()

    @pytest.mark.parametrize(
        "make",
        [material, added_material, pytest.param(trained_material, marks=pytest.mark.nightly)],
    )
    def test_votes_of_a_world_are_those_of_an_ensemble_made_of_it(
        self, make: object, tmp_path: Path
    ) -> None:
        found: Material = make()  # type: ignore[operator]
        first = np.random.default_rng(3).random(len(found.places)) < 0.5
        world = found.world(first)
        sums = sums_of(found)
        if sums is not None:
            assert (sums.add_up(first) == add_up_records(sums.known, world)).all()
            return
        votes = voters_of(found).votes(first)
        if isinstance(found.project, NeighbourProject):
            again = replace(found, first=world, second=world)
            assert (voters_of(again).votes(first) == votes).all()
            return
        public = _public(found.pool)
        out, teachers = tmp_path / "made", found.project.teachers
        train_ensemble(world, out, name="made", teachers=teachers, public=public, seed=0)
        assert (Ensemble.load(out, device="cpu").votes(found.pool.inputs) == votes).all()

    def test_too_few_records_are_an_error(self) -> None:
        few = digits()
        some = replace(few, inputs=few.inputs[:120], labels=few.labels[:120])
        with pytest.raises(DataError) as error:
            Material.of(some, epsilon=1.0, seed=0)
        holds(str(error.value), "few", "records", "attack")


class TestGuesses:
    @pytest.mark.parametrize(
        "attack", [guess_by_likelihood, guess_by_calibrated_loss, guess_by_loss]
    )
    @pytest.mark.parametrize("shift", [0.0, 4.0])
    def test_each_attack_finds_a_shift_and_finds_none_where_there_is_none(
        self, attack: object, shift: float
    ) -> None:
        random = np.random.default_rng(0)
        first = random.random((80, 50)) < 0.5
        scores = random.normal(size=(80, 2, 50))
        scores[:, 0] += shift * first
        students = Students(scores, first, np.ones(80))
        figures = attack(students, True).figures(1.0, 0.0)  # type: ignore[operator]
        assert figures.right > 0.95 if shift else figures.right_limits[0] < 0.5
        assert figures.auc > 0.98 if shift else abs(figures.auc - 0.5) < 0.05

    def test_limits_are_as_wide_as_students_differ(self) -> None:
        """Guesses about one student may be all right or all wrong, by its noise."""
        random = np.random.default_rng(0)
        first = random.random((20, 100)) < 0.5
        together = np.where(random.random((20, 1)) < 0.5, 1.0, -1.0)
        apart = np.where(random.random((20, 100)) < 0.5, 1.0, -1.0)
        wide, narrow = (
            Guesses(np.where(first, 1.0, -1.0) * sign, first).right_limits(0.025)
            for sign in (together, apart)
        )
        assert wide[1] - wide[0] > 5 * (narrow[1] - narrow[0])

    def test_what_is_always_right_proves_a_finite_loss(self) -> None:
        first = np.random.default_rng(0).random((20, 100)) < 0.5
        loss = Guesses(np.where(first, 1.0, -1.0), first).loss(0.001, 0.0)
        assert 5 < loss < 10

    def test_figures_stand_beside_what_the_promise_allows(self) -> None:
        first = np.random.default_rng(0).random((20, 100)) < 0.5
        figures = Guesses(np.where(first, 1.0, -1.0), first).figures(2.0, 1e-5)
        assert figures.right_allowed == max_guess_accuracy(2.0, 1e-5)
        assert figures.caught_allowed == max_detection_rate(2.0, 1e-5)
        assert (figures.right, figures.caught, figures.auc) == (1, 1, 1)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A public table of which the label follows from two numbers."""
    random = np.random.default_rng(0)
    ages, hours = random.integers(18, 90, 1200), random.integers(1, 80, 1200)
    rich = np.where(ages + hours > 95, "high", "low")
    rows = [f"{a},{h},{label}" for a, h, label in zip(ages, hours, rich, strict=True)]
    path = tmp_path / "people.csv"
    path.write_text("\n".join(["age,hours,income", *rows]) + "\n")
    return path


class TestTheCommand:
    def test_it_reads_a_table_and_reports_in_json(
        self, table: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("terrine_server.logs.configure", lambda level: None)
        words = ["--json", "audit", "student", "--students", "16", "--seed", "3"]
        done = CliRunner().invoke(
            app, [*words, "--public", str(table), "--label", "income", "--epsilon", "2"]
        )
        report = json.loads(done.stdout)
        assert {each["part"] for each in report["findings"]} == {"student"}
        assert report["seed"] == 3
        first, *tried, bare = report["findings"]
        assert first["attack"] is None
        assert bare["verdict"].startswith("claim")
        assert {each["price"] for each in tried} == {2.0}
        assert bare["price"] == 1.0
        assert set(tried[0]["attack"]) == {
            "students",
            "guesses",
            "right",
            "right_limits",
            "right_allowed",
            "caught",
            "caught_limits",
            "caught_allowed",
            "auc",
        }
        assert tried[0]["attack"]["students"] == 8
        assert all(each["passed"] for each in tried)
        holds(done.stderr, "best", "attack", "promise", "allows")

    def test_a_table_without_a_label_is_an_error(self, terrine: Terrine, table: Path) -> None:
        holds(terrine("audit", "student", "--public", str(table)).refused, "--label")

    def test_a_table_with_another_label_is_an_error(self, terrine: Terrine, table: Path) -> None:
        words = ("audit", "student", "--public", str(table), "--label", "wealth")
        holds(terrine(*words).refused, "wealth")

    def test_a_missing_file_is_an_error(self, terrine: Terrine) -> None:
        holds(terrine("audit", "student", "--public", "none.csv").refused, "none.csv")

    def test_options_of_students_are_refused_without_them(self, terrine: Terrine) -> None:
        holds(terrine("audit", "ledger", "--epsilon", "2").refused, "--epsilon", "student")
        holds(terrine("audit", "student", "--label", "income").refused, "--label", "--public")
