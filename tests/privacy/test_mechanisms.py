"""Each mechanism does what its paper says, refuses bad input, and treats all votes alike."""

from __future__ import annotations

import ast
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import TypeAdapter
from scipy.stats import chi2

from support.laws import law
from support.processes import calls
from support.wording import refuses
from terrine_protocol import MechanismSpec
from terrine_server.privacy import (
    ComparesWithStudent,
    Mechanism,
    ParameterError,
    VoteOutcome,
    build_mechanism,
    mechanisms,
)
from terrine_server.privacy.numbers import full_tallies

Spec = dict[str, Any]
CHI_SQUARE = 1e-11
"""Rare cells have a heavier tail than chi-square's: by their exact laws, 3·10⁻¹⁰ for this."""
BYTES = 32

SPECS: list[Spec] = [
    {"name": "lnmax", "gamma": 0.3},
    {"name": "gnmax", "sigma": 3.0},
    {"name": "confident_gnmax", "threshold": 6, "sigma1": 2.0, "sigma2": 1.5},
    {
        "name": "interactive_gnmax",
        "threshold": 3,
        "sigma1": 2.0,
        "sigma2": 1.5,
        "confidence": 0.6,
    },
    {"name": "immutable", "c": 2, "gamma": 0.3},
    {"name": "immutable", "c": 2, "sigma": 3.0},
    {"name": "stable", "sigma": 1.0, "delta_per_query": 0.02},
    {"name": "noisy_votes", "sigma": 3.0},
]
VOTES = [(5, 4, 1), (1, 8, 1), (3, 3, 4), (5, 5, 0)]
STUDENT = [0.1, 0.7, 0.2]
every_mechanism = pytest.mark.parametrize("spec", SPECS, ids=str)


def no_noise(count: int) -> bytes:
    """Bits in the middle of the distribution: every draw is 0."""
    return b"\x80".ljust(BYTES, b"\x00") * (count // BYTES)


def release(
    mechanism: Mechanism, votes: Sequence[Sequence[int]], entropy: Any = os.urandom
) -> list[tuple[str, int]]:
    counts = np.array(votes)
    student = np.tile(STUDENT, (len(counts), 1)) if mechanism.needs_probabilities else None
    released = mechanism.release(counts, student, entropy)
    return list(zip(released.outcomes.tolist(), released.labels.tolist(), strict=True))


def build(spec: Spec) -> Mechanism:
    return build_mechanism(spec, teachers=10, classes=3)


@pytest.mark.statistical
@every_mechanism
@pytest.mark.parametrize("votes", VOTES, ids=str)
def test_releases_follow_the_exact_law(spec: Spec, votes: tuple[int, ...]) -> None:
    """A false alarm less than once in 10⁹ times; half the noise is found, of every mechanism."""
    draws = 60_000
    expected = law(spec, votes, STUDENT)
    observed = Counter(release(build(spec), [votes] * draws))
    assert set(observed) <= set(expected)
    # Outcomes too rare for the chi-square approximation are pooled.
    rare = [outcome for outcome, p in expected.items() if p * draws < 20]
    cells = [(observed[o], p * draws) for o, p in expected.items() if o not in rare]
    cells.append(
        (sum(observed[o] for o in rare), max(20.0, draws * sum(expected[o] for o in rare)))
    )
    statistic = sum((seen - mean) ** 2 / mean for seen, mean in cells if seen > mean or mean > 20)
    assert chi2.sf(statistic, len(cells)) > CHI_SQUARE


@every_mechanism
def test_outcomes_are_those_with_a_price(spec: Spec) -> None:
    mechanism = build(spec)
    for outcome, label in release(mechanism, VOTES * 500):
        assert isinstance(outcome, VoteOutcome)
        assert outcome in mechanism.events()
        assert (label == -1) == (outcome is VoteOutcome.ABSTAINED)


@every_mechanism
def test_ties_go_to_the_lowest_class(spec: Spec) -> None:
    outcomes = release(build(spec), [(4, 4, 2), (2, 4, 4)], no_noise)
    assert all(label in (-1, winner) for (_, label), winner in zip(outcomes, (0, 1), strict=True))


@every_mechanism
@given(votes=st.permutations([7, 2, 1]), order=st.permutations([0, 1, 2]))
def test_renaming_the_classes_renames_the_answers(
    spec: Spec, votes: list[int], order: list[int]
) -> None:
    mechanism = build(spec)

    def answer(names: list[int]) -> tuple[VoteOutcome, int]:
        student = np.array([[STUDENT[j] for j in names]]) if mechanism.needs_probabilities else None
        counts = np.array([[votes[j] for j in names]])
        released = mechanism.release(counts, student, no_noise)
        label = int(released.labels[0])
        return released.outcomes[0], names[label] if label >= 0 else -1

    assert answer(order) == answer([0, 1, 2])


@every_mechanism
def test_every_query_draws_the_same_noise_whatever_its_votes(spec: Spec) -> None:
    def bytes_drawn(votes: Sequence[int]) -> int:
        drawn = 0

        def counting(count: int) -> bytes:
            nonlocal drawn
            drawn += count
            return os.urandom(count)

        release(build(spec), [votes] * 50, counting)
        return drawn

    assert len({bytes_drawn(votes) for votes in [(10, 0, 0), (4, 3, 3), (0, 0, 0)]}) == 1


@every_mechanism
def test_releasing_takes_as_many_steps_for_agreement_as_for_doubt(spec: Spec) -> None:
    mechanism = build(spec)
    student = np.tile(STUDENT, (4000, 1)) if mechanism.needs_probabilities else None

    def steps(votes: Sequence[int]) -> int:
        """To release 4,000 answers with the same noise."""
        counts, random = np.tile(votes, (4000, 1)), np.random.default_rng(0)
        return calls(lambda: mechanism.release(counts, student, random.bytes))

    steps((10, 0, 0))  # makes the tables of the noise
    assert steps((10, 0, 0)) == steps((4, 3, 3))


@every_mechanism
def test_every_query_has_an_answer_and_votes_are_not_modified(spec: Spec) -> None:
    mechanism = build(spec)
    for votes in (VOTES, []):
        counts = np.array(votes, dtype=np.int64).reshape(-1, 3)
        before, student = counts.copy(), np.tile(STUDENT, (len(votes), 1))
        released = mechanism.release(counts, student if mechanism.needs_probabilities else None)
        assert (counts == before).all()
        assert released.labels.shape == released.outcomes.shape == (len(votes),)


@every_mechanism
@pytest.mark.parametrize(
    "counts",
    [
        np.array([[5.0, 3.0, 2.0]]),
        np.array([5, 3, 2]),
        np.array([[5, 5]]),
        [[5, 3, 2]],
    ],
    ids=["floats", "one dimension", "two classes", "list"],
)
def test_counts_of_another_shape_or_type_are_refused(spec: Spec, counts: Any) -> None:
    mechanism = build(spec)
    student = np.array([STUDENT]) if mechanism.needs_probabilities else None
    with pytest.raises(ValueError, match=r"[Vv]ote counts"):
        mechanism.release(counts, student)


ANY_COUNT = st.one_of(st.integers(-2, 12), st.sampled_from([-(2**63), 2**63 - 1, 2**31, -(2**31)]))


@given(
    row=st.lists(ANY_COUNT, min_size=2, max_size=5),
    teachers=st.integers(1, 12),
    moved=st.tuples(st.integers(0, 4), st.integers(0, 4)),
)
def test_any_counts_become_full_tallies_of_which_a_vote_moves_one(
    row: list[int], teachers: int, moved: tuple[int, int]
) -> None:
    """Whatever a defect makes of votes, what is released is one vote of each teacher, and what one
    of them does moves one vote."""
    classes = len(row)
    tally = full_tallies(np.array([row]), teachers, classes)
    assert tally.dtype == np.int64
    assert tally.sum() == teachers
    assert (tally >= 0).all()
    assert (full_tallies(tally, teachers, classes) == tally).all(), "full ones stay"
    for gone, come in (moved, (moved[0], None), (None, moved[1])):
        other = [
            min(max(votes - (place == gone) + (place == come), -(2**63)), 2**63 - 1)
            for place, votes in enumerate(row)
        ]
        change = full_tallies(np.array([other]), teachers, classes) - tally
        assert np.abs(change).max() <= 1
        assert np.abs(change).sum() <= 2


@every_mechanism
@given(rows=st.lists(st.tuples(*[ANY_COUNT] * 3), min_size=1, max_size=4))
def test_no_value_of_the_counts_is_an_error(spec: Spec, rows: list[tuple[int, ...]]) -> None:
    mechanism = build(spec)
    drawn: list[int] = []

    def counting(count: int) -> bytes:
        drawn.append(count)
        return no_noise(count)

    found = release(mechanism, rows, counting)
    assert all(outcome in mechanism.events() for outcome, _ in found)
    as_many = list(drawn)
    drawn.clear()
    release(mechanism, [(10, 0, 0)] * len(rows), counting)
    assert drawn == as_many


SECRET = {
    *("vote", "votes", "counts", "counted", "cast", "sums", "tallies", "tally", "cumulative"),
    *("weights", "block", "accounts", "after", "spent", "squared", "takes_part", "others", "gap"),
    *("statistic", "distance", "difference", "noise", "noisy", "passed"),
    *("uniform", "draws", "rows", "places", "columns", "mean_tail", "largest", "spend"),
}
"""What functions between votes and their charge call what follows from votes."""
BETWEEN: dict[str, list[str]] = {
    **{f"privacy/mechanisms/{name}.py": [] for name in ("base", *mechanisms.MECHANISMS)},
    "privacy/releases.py": ["add_noise"],
    "privacy/noise.py": ["add_noise", "noisy_max", "sample", "_locate"],
    "privacy/numbers.py": ["full_tallies", "check_counts_shape"],
    "privacy/published.py": ["places", "values", "statistic_of", "union_bound"],
    "labeling/voters.py": ["get_full_tallies", "record_weights", "_check_weights"],
    "labeling/strategies.py": ["vote"],
    "labeling/pipeline.py": ["_draw", "_select_rows"],
}
"""The functions of each module, or all of it, that handle votes."""


def looks_at_values(test: ast.expr) -> bool:
    """Whether a condition depends on more of what is secret than its shape, type or presence."""
    match test:
        case (
            ast.Attribute(attr="shape" | "dtype" | "ndim")
            | ast.Compare(ops=[ast.Is() | ast.IsNot()])
        ):
            return False
        case ast.Call(func=ast.Name(id="len" | "isinstance")):
            return False
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in SECRET:
            return True
    return any(
        looks_at_values(part) for part in ast.iter_child_nodes(test) if isinstance(part, ast.expr)
    )


def conditions_on_values(source: str, functions: list[str]) -> list[str]:
    """The conditions in functions of a module, or in all, that look at secret values."""
    found = []
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef) and function.name in (
            functions or [function.name]
        ):
            for node in ast.walk(function):
                tests = [*getattr(node, "ifs", []), getattr(node, "test", None)]
                found += [
                    f"{function.name}: {ast.unparse(test)}"
                    for test in tests
                    if test is not None and looks_at_values(test)
                ]
    return found


@pytest.mark.parametrize("module", BETWEEN)
def test_nothing_between_votes_and_noise_raises_by_their_values(module: str) -> None:
    """No condition, of a `raise` or of anything else, looks at a value of theirs."""
    source = (Path(mechanisms.__file__).parents[2] / module).read_text(encoding="utf-8")
    assert conditions_on_values(source, BETWEEN[module]) == []
    names = {each.name for each in ast.walk(ast.parse(source)) if isinstance(each, ast.FunctionDef)}
    assert names >= set(BETWEEN[module])


@pytest.mark.parametrize(
    "planted",
    [
        "if np.any(counts < 0) or np.any(counts > teachers):\n        raise ValueError",
        "assert votes.sum() == 3",
        "return 1 if self.tally[0] else 2",
        "while spent.max() > 3:\n        pass",
        "return [1 for row in x if vote.counts[row] > 0]",
    ],
)
def test_a_condition_on_values_is_found(planted: str) -> None:
    assert conditions_on_values(f"def release(counts):\n    {planted}", ["release"])
    assert not conditions_on_values(f"def planned(counts):\n    {planted}", ["release"])
    shapes = "if counts.ndim != 2 or len(votes) > 3 or weights is None:\n        raise ValueError"
    assert not conditions_on_values(f"def release(counts):\n    {shapes}", [])


class TestAlgorithms:
    """The deterministic part of each algorithm, with all noise at zero."""

    def test_confident_compares_the_largest_count_with_the_threshold(self) -> None:
        mechanism = build(SPECS[2])
        outcomes = release(mechanism, [(6, 4, 0), (5, 4, 1)], no_noise)
        assert outcomes == [("answered", 0), ("abstained", -1)]

    def test_interactive_answers_where_the_teachers_differ_from_the_student(self) -> None:
        mechanism = build(SPECS[3])
        # Baseline of STUDENT is (1, 7, 2).
        outcomes = release(mechanism, [(4, 5, 1), (3, 7, 0)], no_noise)
        assert outcomes == [("answered", 1), ("reinforced", 1)]
        unsure = mechanism.release(np.array([[3, 4, 3]]), np.array([[0.3, 0.4, 0.3]]), no_noise)
        assert unsure.outcomes[0] is VoteOutcome.ABSTAINED
        # A student that is as sure as the confidence, and no more, is not confirmed.
        equal = mechanism.release(np.array([[2, 6, 2]]), np.array([[0.2, 0.6, 0.2]]), no_noise)
        assert equal.outcomes[0] is VoteOutcome.ABSTAINED

    def test_interactive_rounds_the_students_baseline_half_up(self) -> None:
        mechanism = build(SPECS[3])
        assert isinstance(mechanism, ComparesWithStudent)
        baseline = mechanism.canonical_baseline(np.array([[0.05, 0.15, 0.8], [0.25, 0.5, 0.25]]))
        assert baseline.tolist() == [[1, 2, 8], [3, 5, 3]]
        assert baseline.dtype == np.int64
        # Probabilities of 32 bits are not rounded again: 10 × 0.35 is below 3.5 in them.
        narrow: Any = np.array([[0.35, 0.65, 0.0]], dtype=np.float32)
        assert mechanism.canonical_baseline(narrow).tolist() == [[3, 6, 0]]

    def test_immutable_adds_its_votes_to_the_winner_alone(self) -> None:
        spec = {"name": "immutable", "c": 10, "sigma": 1.0}
        assert law(spec, (5, 4, 1))["answered", 0] > 1 - 1e-9
        assert set(release(build(spec), [(5, 4, 1)] * 2000)) == {("answered", 0)}

    def test_stable_answers_the_exact_winner_or_nothing(self) -> None:
        outcomes = set(release(build(SPECS[6]), [(2, 7, 1)] * 5000))
        assert outcomes == {("answered", 1), ("abstained", -1)}


@pytest.mark.parametrize(
    ("student", "text"),
    [
        (None, "probabilities"),
        (np.array([[0.5, 0.5]]), "shape"),
        (np.array([0.1, 0.7, 0.2]), "shape"),
        (np.array([STUDENT, STUDENT]), "1 2 rows"),
        (np.array([[0.5, np.nan, 0.5]]), "0 1"),
        (np.array([[0.5, np.inf, 0.5]]), "0 1"),
        (np.array([[1.2, -0.2, 0.0]]), "0 1"),
        (np.array([[0.5, 0.6, 0.1]]), "sum 1"),
    ],
)
def test_invalid_probabilities_are_refused(student: NDArray[np.float64] | None, text: str) -> None:
    with refuses(ParameterError, *text.split()):
        build(SPECS[3]).release(np.array([[5, 4, 1]]), student)


@given(st.lists(st.floats(0, 1), min_size=3, max_size=3).filter(lambda p: sum(p) > 0.1))
def test_no_baseline_leaves_the_range_that_is_priced(weights: list[float]) -> None:
    mechanism = build(SPECS[3])
    assert isinstance(mechanism, ComparesWithStudent)
    student = np.array([weights]) / sum(weights)
    baseline = mechanism.canonical_baseline(student)
    assert ((baseline >= 0) & (baseline <= 10)).all()


@pytest.mark.parametrize(
    "spec", [*SPECS, {"name": "neighbours", "sigma": 40.0, "queries": 100, "norm": 1}], ids=str
)
def test_every_specification_on_the_wire_builds_the_mechanism_it_names(spec: Spec) -> None:
    parsed = TypeAdapter[Any](MechanismSpec).validate_python(dict(spec))
    mechanism = build(parsed.model_dump())
    assert mechanism.name == spec["name"]
    assert mechanism == build(spec)
