"""Each parameter is checked where it is given; a refusal names it and says what is allowed."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from support.wording import holds, refuses
from terrine_protocol import MechanismSpec
from terrine_server.privacy import Mechanism, ParameterError, build_mechanism
from terrine_server.privacy.parameters import check_epsilon

Spec = dict[str, Any]
LNMAX: Spec = {"name": "lnmax", "gamma": 0.3}
GNMAX: Spec = {"name": "gnmax", "sigma": 3.0}
CONFIDENT: Spec = {"name": "confident_gnmax", "threshold": 6, "sigma1": 2.0, "sigma2": 1.5}
INTERACTIVE: Spec = {**CONFIDENT, "name": "interactive_gnmax", "confidence": 0.6}
BOOSTED: Spec = {"name": "immutable", "c": 2, "sigma": 3.0}
LAPLACE_BOOSTED: Spec = {"name": "immutable", "c": 2, "gamma": 0.3}
STABLE: Spec = {"name": "stable", "sigma": 1.0, "delta_per_query": 0.02}
COUNTS: Spec = {"name": "noisy_votes", "sigma": 3.0}

GAUSSIAN = "the discrete Gaussian's table and price are proven in this range."
WIDTHS = "the noise has scale 1/gamma, and its table is limited to scales of 0.02 to 1000 votes."
SHARE = "far from 1, one of the outcomes costs next to nothing, or everything."
CHANGES: list[tuple[Spec, str, Any, str]] = [
    (LNMAX, "gamma", 0.0, "gamma = 0.0 must be positive; the noise has scale 1/gamma."),
    (LNMAX, "gamma", 50.1, f"gamma = 50.1 is not between 0.001 and 50: {WIDTHS}"),
    (GNMAX, "sigma", 0, "sigma = 0 must be positive: without noise there is no privacy."),
    (CONFIDENT, "sigma1", 0.49, f"sigma1 = 0.49 is not between 0.5 and 10000: {GAUSSIAN}"),
    (CONFIDENT, "sigma2", 10001, f"sigma2 = 10001 is not between 0.5 and 10000: {GAUSSIAN}"),
    (CONFIDENT, "threshold", 11, "11 is not between 0 and 10: 10 teachers cast at most 10 votes."),
    (CONFIDENT, "answer_share", 101, f"answer_share = 101 is not between 0.001 and 100: {SHARE}"),
    (INTERACTIVE, "sigma1", 0.49, f"sigma1 = 0.49 is not between 0.5 and 10000: {GAUSSIAN}"),
    (INTERACTIVE, "sigma2", None, "sigma2 must be a number, not None."),
    (INTERACTIVE, "threshold", "3", "threshold must be a whole number, not '3'."),
    (
        INTERACTIVE,
        "confidence",
        -0.1,
        "between 0 and 1: it is compared with a probability.",
    ),
    (
        INTERACTIVE,
        "answer_share",
        1e-4,
        f"0.0001 is not between 0.001 and 100: {SHARE}",
    ),
    (LAPLACE_BOOSTED, "gamma", 1e-5, f"gamma = 1e-05 is not between 0.001 and 50: {WIDTHS}"),
    (BOOSTED, "sigma", 0.4, f"sigma = 0.4 is not between 0.5 and 10000: {GAUSSIAN}"),
    (BOOSTED, "c", 10**9 + 1, "1000000000: it is the number of votes added to the winner."),
    (STABLE, "sigma", 0.4, f"sigma = 0.4 is not between 0.5 and 10000: {GAUSSIAN}"),
    (STABLE, "delta_per_query", 1.0, "delta_per_query = 1 must lie strictly between 0 and 1."),
    (COUNTS, "sigma", 0.4, f"sigma = 0.4 is not between 0.5 and 10000: {GAUSSIAN}"),
]


def build(spec: Spec) -> Mechanism:
    return build_mechanism(spec, teachers=10, classes=3)


@pytest.mark.parametrize(("spec", "name", "value", "end"), CHANGES)
def test_a_refusal_says_what_was_given_and_why_it_is_refused(
    spec: Spec, name: str, value: Any, end: str
) -> None:
    with pytest.raises(ParameterError) as refusal:
        build(spec | {name: value})
    assert str(refusal.value).startswith(f"{name} ")
    assert str(refusal.value).endswith(end)


@pytest.mark.parametrize(
    ("spec", "changes"),
    [
        (LNMAX, {"gamma": 0.001}),
        (LNMAX, {"gamma": 50}),
        (GNMAX, {"sigma": 0.5}),
        (GNMAX, {"sigma": 10_000}),
        (CONFIDENT, {"threshold": 0, "answer_share": 0.001}),
        (CONFIDENT, {"threshold": 10, "answer_share": 100}),
        (INTERACTIVE, {"confidence": 0}),
        (INTERACTIVE, {"confidence": 1}),
        (LAPLACE_BOOSTED, {"c": 0}),
        (LAPLACE_BOOSTED, {"c": 10**9}),
    ],
)
def test_parameters_at_the_ends_of_their_ranges_are_allowed(spec: Spec, changes: Spec) -> None:
    assert build(spec | changes).name == spec["name"]
    TypeAdapter(MechanismSpec).validate_python(spec | changes)  # the wire's limits are no narrower


@pytest.mark.parametrize(
    ("teachers", "classes", "why"),
    [
        (0, 3, "teachers 0 1 1000000"),
        (10**6 + 1, 3, "teachers 1000001 1 1000000"),
        (10, 1, "classes 1 2 100000"),
        (10, 10**5 + 1, "classes 100001 2 100000"),
        (2.0, 3, "teachers whole 2.0"),
        (10, True, "classes whole True"),
    ],
)
def test_ensembles_that_cannot_vote_are_refused(teachers: Any, classes: Any, why: str) -> None:
    with refuses(ParameterError, *why.split()):
        build_mechanism(GNMAX, teachers=teachers, classes=classes)


def test_the_smallest_and_the_largest_ensembles_vote() -> None:
    for teachers, classes in ((1, 2), (10**6, 10**5)):
        built = build_mechanism(GNMAX, teachers=teachers, classes=classes)
        assert (built.teachers, built.classes) == (teachers, classes)


@pytest.mark.parametrize(
    ("epsilon", "why"),
    [
        ("1", "epsilon number, '1'."),
        (0, "epsilon 0 positive."),
        (9e-7, "epsilon 9e-07 between 1e-06 100:"),
        (100.1, "epsilon 100.1 between 1e-06 100:"),
    ],
)
def test_an_epsilon_that_means_nothing_is_refused(epsilon: Any, why: str) -> None:
    with pytest.raises(ParameterError) as refusal:
        check_epsilon(epsilon)
    holds(str(refusal.value), *why.split())
    assert str(refusal.value).endswith(".")
    assert (check_epsilon(1e-6), check_epsilon(100)) == (1e-6, 100.0)
