"""Each parameter is checked where it is given; a refusal names it and says what is allowed."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import TypeAdapter

from support.wording import refuses
from terrine_protocol import MechanismSpec
from terrine_server.privacy import Mechanism, ParameterError, build_mechanism
from terrine_server.privacy.noise import discrete_gaussian, discrete_laplace
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
NEIGHBOURS: Spec = {"name": "neighbours", "sigma": 40.0, "queries": 100}

REFUSED: list[tuple[Spec, str]] = [
    ({}, "None"),
    ({"name": "noisy"}, "'noisy' lnmax gnmax"),
    ({"name": "gnmax"}, "parameters gnmax"),
    ({"name": "noisy_votes"}, "parameters noisy_votes"),
    (GNMAX | {"seed": 1}, "parameters gnmax"),
    (COUNTS | {"gamma": 1.0}, "parameters noisy_votes"),
    (NEIGHBOURS | {"extra": 1}, "parameters"),
    (LNMAX | {"gamma": 0.0}, "gamma 0.0 positive"),
    (LNMAX | {"gamma": 1e-5}, "gamma 1e-05 0.001 50"),
    (LNMAX | {"gamma": 50.1}, "gamma 50.1 0.001 50"),
    (LNMAX | {"gamma": math.inf}, "gamma finite"),
    (GNMAX | {"sigma": 0}, "sigma 0 positive privacy"),
    (GNMAX | {"sigma": -2.0}, "sigma -2.0 positive"),
    (GNMAX | {"sigma": math.nan}, "sigma finite"),
    (GNMAX | {"sigma": math.inf}, "sigma finite"),
    (GNMAX | {"sigma": "2"}, "sigma number '2'"),
    (GNMAX | {"sigma": True}, "sigma number"),
    (GNMAX | {"sigma": 0.3}, "sigma 0.3 0.5 10000"),
    (GNMAX | {"sigma": 1e5}, "sigma 100000 0.5 10000"),
    (COUNTS | {"sigma": 0.4}, "sigma 0.4 0.5 10000"),
    (CONFIDENT | {"sigma1": 0.49}, "sigma1 0.49 0.5 10000"),
    (CONFIDENT | {"sigma2": 10001}, "sigma2 10001 0.5 10000"),
    (CONFIDENT | {"threshold": 11}, "threshold 11 10 teachers votes"),
    (CONFIDENT | {"threshold": -1}, "threshold -1 0 10"),
    (CONFIDENT | {"threshold": 5.5}, "threshold whole 5.5"),
    (CONFIDENT | {"answer_share": 101}, "answer_share 101 0.001 100"),
    (INTERACTIVE | {"sigma1": 0.49}, "sigma1 0.49 0.5 10000"),
    (INTERACTIVE | {"sigma2": 0.1}, "sigma2 0.1 0.5 10000"),
    (INTERACTIVE | {"sigma2": None}, "sigma2 number None"),
    (INTERACTIVE | {"threshold": "3"}, "threshold whole '3'"),
    (INTERACTIVE | {"confidence": -0.1}, "confidence -0.1 0 1 probability"),
    (INTERACTIVE | {"confidence": 1.5}, "confidence 1.5 0 1"),
    (INTERACTIVE | {"answer_share": 1e-4}, "answer_share 0.0001 0.001 100"),
    ({"name": "immutable", "c": 1}, "one gamma sigma"),
    (BOOSTED | {"gamma": 1.0}, "one gamma sigma"),
    (BOOSTED | {"sigma": 0.4}, "sigma 0.4 0.5 10000"),
    (BOOSTED | {"c": -1}, "c -1 winner"),
    (BOOSTED | {"c": 10**9 + 1}, "c 1000000001 1000000000"),
    (LAPLACE_BOOSTED | {"c": 10**100}, "c 1e+100 1e90 docs/privacy/failed-claims.md"),
    (LAPLACE_BOOSTED | {"c": 1e100}, "c 1e+100 1e90 docs/privacy/failed-claims.md"),
    (LAPLACE_BOOSTED | {"c": math.inf}, "c 1000000000"),
    (LAPLACE_BOOSTED | {"c": 1.5}, "c whole 1.5"),
    (LAPLACE_BOOSTED | {"gamma": 1e-5}, "gamma 1e-05 0.001 50"),
    (STABLE | {"sigma": 0.4}, "sigma 0.4 0.5 10000"),
    (STABLE | {"delta_per_query": 0.0}, "delta_per_query 0 1"),
    (STABLE | {"delta_per_query": 1.0}, "delta_per_query 1 0"),
    (STABLE | {"delta_per_query": 1e-9}, "query answered"),
    (NEIGHBOURS | {"sigma": 0.0}, "sigma positive"),
    (NEIGHBOURS | {"queries": 0}, "queries"),
    (NEIGHBOURS | {"queries": 1.5}, "queries"),
    (NEIGHBOURS | {"norm": 0}, "norm"),
    (NEIGHBOURS | {"norm": 256}, "norm"),
]


def build(spec: Spec) -> Mechanism:
    return build_mechanism(spec, teachers=10, classes=3)


@pytest.mark.parametrize(("spec", "words"), REFUSED)
def test_a_refusal_says_what_was_given_and_why_it_is_refused(spec: Spec, words: str) -> None:
    with refuses(ParameterError, *words.split()):
        build(spec)


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
    ("spec", "teachers", "classes", "words"),
    [
        (GNMAX, 0, 3, "teachers 0 1 1000000"),
        (GNMAX, 10**6 + 1, 3, "teachers 1000001 1 1000000"),
        (GNMAX, 10, 1, "classes 1 2 100000"),
        (GNMAX, 10, 10**5 + 1, "classes 100001 2 100000"),
        (GNMAX, 2.0, 3, "teachers whole 2.0"),
        (GNMAX, 10, True, "classes whole True"),
        (COUNTS, 10, 1001, "classes 1001 2 1000 gnmax"),
    ],
)
def test_ensembles_that_cannot_vote_are_refused(
    spec: Spec, teachers: Any, classes: Any, words: str
) -> None:
    with refuses(ParameterError, *words.split()):
        build_mechanism(spec, teachers=teachers, classes=classes)


def test_the_smallest_and_the_largest_ensembles_vote() -> None:
    for teachers, classes in ((1, 2), (10**6, 10**5)):
        built = build_mechanism(GNMAX, teachers=teachers, classes=classes)
        assert (built.teachers, built.classes) == (teachers, classes)


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [
        ("1", "epsilon number '1'"),
        (0, "epsilon 0 positive"),
        (9e-7, "epsilon 9e-07 between 1e-06 100"),
        (100.1, "epsilon 100.1 between 1e-06 100"),
    ],
)
def test_an_epsilon_that_means_nothing_is_refused(epsilon: Any, words: str) -> None:
    with refuses(ParameterError, *words.split()):
        check_epsilon(epsilon)
    assert (check_epsilon(1e-6), check_epsilon(100)) == (1e-6, 100.0)


@pytest.mark.parametrize("width", [0.0, -1.0, 0.0009, 10_001.0, math.nan, math.inf])
def test_no_table_of_noise_is_made_outside_the_proven_range(width: float) -> None:
    for made, name in ((discrete_gaussian, "sigma"), (discrete_laplace, "gamma")):
        with refuses(ParameterError, name):
            made(width)
