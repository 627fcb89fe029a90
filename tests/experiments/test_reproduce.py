"""`make reproduce` runs whole experiments on files of the published formats."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from rich.console import Console

from support.processes import Terrine
from support.wording import holds, refuses
from terrine_experiments.papers import PAPERS
from terrine_experiments.reproduce import Experiment
from terrine_experiments.results import FILE, ExperimentResult, half_width, keep, table
from terrine_experiments.sources import FILES, check, load
from terrine_experiments.study import Study, parts, pool_size, public_part, trained
from terrine_models.data.arrays import DataError
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.kinds import Heads
from terrine_models.teachers.shards import partition_records

pytestmark = pytest.mark.nightly

PRIVATE, TEST = 600, 160


@pytest.fixture(scope="session")
def adult(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as Adult is published; older people who work more earn more."""
    directory = tmp_path_factory.mktemp("adult")
    random = np.random.default_rng(0)
    for name, rows, end in (("adult.data", PRIVATE, ""), ("adult.test", TEST, ".")):
        lines = ["|1x3 Cross validator"] if end else []
        for _ in range(rows):
            age, hours = random.integers(17, 90), random.integers(1, 99)
            income = (">50K" if age + hours > 110 else "<=50K") + end
            lines.append(
                f"{age}, Private, {random.integers(20000, 900000)}, Bachelors, "
                f"{random.integers(1, 17)}, Divorced, Sales, Husband, White, Male, "
                f"{random.integers(0, 9999)}, {random.integers(0, 999)}, {hours}, Cuba, {income}"
            )
        (directory / name).write_text("\n".join(lines) + "\n")
    return directory


def results(out: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads((out / FILE).read_text())
    return found


def test_an_experiment_is_repeated_continued_and_compared(
    experiments: Terrine, idx: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    options = ("--quick", "--epsilon", "30", "--runs", "2", "--out", out)
    said = " ".join(experiments("reproduce", "mnist", idx, *options).fine.split())
    holds(said, "Papernot", 2018)
    holds(said, "data-dependent", "publish")
    holds(said, "original")
    (first,) = results(out)
    assert first["tested"] == first["public_inputs"] == TEST
    accuracies = first["accuracies"]
    assert isinstance(accuracies, list)
    assert len(accuracies) == 2
    assert min(accuracies) > 0.6
    assert first["chosen"] == {"kernel": 10}
    assert first["true_labels_chosen"] == {"kernel": 5}
    assert 29 < float(str(first["epsilon_spent"])) <= 30
    assert (out / "mnist-folds.png").read_bytes().startswith(b"\x89PNG")

    found = out / "found"
    kept = {file: file.read_bytes() for file in found.glob("*-asked-*")}
    asked = [file for file in kept if "student" not in file.name]
    assert len(asked) == 2, "each run draws its own noise"
    for file in asked:
        assert len(json.loads(kept[file])["found"]["answered"]) == TEST
    (lost,) = found.glob("*-asked-1-student-3.json")
    lost.unlink()
    again = experiments("reproduce", "mnist", idx, *options).fine
    assert again.count("Training kernel") == 1
    assert {file: file.read_bytes() for file in found.glob("*-asked-*")} == kept
    (second,) = results(out)
    assert second["accuracies"] == accuracies


def test_every_run_deals_the_records_anew_and_trains_its_own_teachers(
    idx: Path, tmp_path: Path
) -> None:
    source = replace(load("mnist", idx), teachers=20, config=Heads(augmentations=0))
    console, public = Console(quiet=True), public_part(source)
    directories = [tmp_path / f"run-{number}" for number in (0, 1)]
    made = [
        trained(source, public, directory, number, console)
        for number, directory in enumerate(directories)
    ]
    shards = [
        partition_records(source.private, 20, each.partition.seed)[0]
        for each in made
        if each.partition
    ]
    assert len(shards) == 2
    for ours, theirs in zip(*shards, strict=True):
        assert set(ours.tolist()) != set(theirs.tolist())
    votes = [Ensemble.load(directory).votes(source.test.inputs) for directory in directories]
    assert (votes[0] != votes[1]).any()
    assert trained(source, public, directories[1], 1, console) == made[1]
    with refuses(DataError, "settings"):
        trained(source, public, directories[1], 0, console)


def test_equal_inputs_have_one_answer_which_is_paid_for_once(idx: Path, tmp_path: Path) -> None:
    source = replace(load("mnist", idx), teachers=20, config=Heads(augmentations=0))
    test, bought = source.test, []
    twice = replace(test, inputs=np.tile(test.inputs, (2, 1, 1)), labels=np.tile(test.labels, 2))
    for asked in (test, twice):
        own = replace(source, test=asked)
        study = Study(tmp_path, tmp_path / str(len(asked)), Console(quiet=True), {"mnist": own})
        bought.append(Experiment(study, own, "folds", "noisy_votes", 1e-5, 1).buy(60.0, 0))
    first, again = np.split(bought[1].answers.shares, 2)
    assert np.array_equal(first, again)
    assert len(np.unique(first, axis=0)) == TEST
    assert bought[1].epsilon_spent < bought[0].epsilon_spent, "half of what was planned for"


@pytest.mark.parametrize("runs", [2, 3, 5, 20])
def test_the_interval_is_students_prediction_interval_with_the_sampling_of_the_tests(
    runs: int,
) -> None:
    figures = np.random.default_rng(runs).normal(0.9, 0.01, runs).tolist()
    low, high = scipy.stats.t.interval(
        0.95, runs - 1, np.mean(figures), scipy.stats.sem(figures) * np.sqrt(runs + 1)
    )
    endless = half_width(figures, 10**15)
    assert endless == pytest.approx((high - low) / 2, rel=1e-6)
    alike = half_width([0.9] * runs, 1000)
    low, high = scipy.stats.norm.interval(0.95, 0.9, np.sqrt(0.09 / 1000))
    assert alike == pytest.approx((high - low) / 2)
    assert half_width([0.9], 1000) is None


def test_the_last_inputs_measure_a_student_of_all_others(
    experiments: Terrine, idx: Path, tmp_path: Path
) -> None:
    options = ("--quick", "--runs", "1", "--protocol", "last-1000", "--out", tmp_path)
    said = experiments("reproduce", "fashion", idx, *options, "--epsilon", "60").fine
    holds(" ".join(said.split()), "DP-SGD", "scattering")
    (found,) = results(tmp_path)
    assert found["tested"] == TEST // 10
    assert found["public_inputs"] == TEST - TEST // 10
    assert found["answers"] == TEST - TEST // 10
    usual = Heads()
    assert found["heads"] == {
        "augmentations": usual.augmentations,
        "rotation": usual.rotation,
        "elastic": usual.elastic,
        "ridge": 0.1,
        "match_prior": False,
    }


def test_tables_are_reproduced_too(experiments: Terrine, adult: Path, tmp_path: Path) -> None:
    options = ("--quick", "--runs", "1", "--epsilon", "40", "--out", tmp_path)
    said = experiments("reproduce", "adult", adult, *options).fine
    holds(" ".join(said.split()), "Papernot", 2018)
    (found,) = results(tmp_path)
    assert float(str(found["accuracies"])[1:-1]) > float(str(found["majority"]))


def test_the_real_mnist_is_recognised(shared_data: Path) -> None:
    found = [next((shared_data / "mnist").glob(f"{start}*")) for start in FILES["mnist"]]
    assert check("mnist", found) == ()
    found = [next((shared_data / "adult").glob(f"{start}*")) for start in FILES["adult"]]
    assert check("adult", found) == ()


def test_no_student_is_measured_on_what_it_has_seen(idx: Path) -> None:
    source = load("mnist", idx)
    every = parts("folds", source)
    assert len(every) == 5
    assert sorted(np.concatenate([part.tested for part in every]).tolist()) == list(range(TEST))
    for part in (*every, *parts("last-1000", source)):
        assert not np.isin(part.tested, part.seen).any()
        assert len(part.tested) + len(part.seen) == TEST
    assert pool_size("last-1000", source) == TEST - TEST // 10
    (last,) = parts("last-1000", source)
    assert last.tested.min() > last.seen.max()


def test_files_that_do_not_fit_are_refused(
    experiments: Terrine, adult: Path, tmp_path: Path
) -> None:
    out = ("--out", tmp_path / "out")
    holds(experiments("reproduce", "mnist", "nowhere", *out).refused, "nowhere", "directory")
    holds(experiments("reproduce", "mnist", adult, *out).refused, "train-images")
    assert not (tmp_path / "out").exists()


def example(epsilon: float, accuracies: list[float]) -> ExperimentResult:
    return ExperimentResult(
        data="mnist",
        title="MNIST",
        protocol="folds",
        mechanism={"name": "noisy_votes", "sigma": 100.0},
        kind="heads",
        teachers=1000,
        public_inputs=10_000,
        tested=10_000,
        epsilon=epsilon,
        delta=1e-5,
        epsilon_spent=epsilon * 0.99,
        rule="Gaussian DP",
        papers_epsilon=None,
        answers=10_000,
        accuracies=accuracies,
        plain=[0.9 * each for each in accuracies],
        chosen={"kernel": 15},
        true_labels=0.99,
        true_labels_chosen={"kernel": 5},
        plurality=[0.98] * len(accuracies),
        majority=0.1135,
        heads={},
        warnings=[],
    )


def test_results_gather_and_the_same_experiment_replaces_its_own(tmp_path: Path) -> None:
    keep([example(0.6, [0.98])], tmp_path)
    keep([replace(example(0.3, [0.97]), protocol="last-1000")], tmp_path)
    keep([example(0.3, [0.5])], tmp_path)
    found = keep([example(0.3, [0.97, 0.98, 0.99])], tmp_path)
    assert [each.epsilon for each in found] == [0.3, 0.6]
    assert found[0].accuracy == "98.00%, 93.02 to 100.00 (95 %, 3 runs)"
    assert found[1].accuracy == "98.00% (one run: no interval)"
    assert table(found[0]).row_count == 5 + len(PAPERS["mnist"])
