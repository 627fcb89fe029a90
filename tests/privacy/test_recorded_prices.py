"""Costs and conversions stay what they are, to ten digits and their margins.

Open projects were priced by this code. Other tests compare it with proofs and with other programs,
to the digits that those give; here it is compared with itself, so that no margin gets lost and no
price changes unnoticed. To record new values, run this file as a program: it names what changed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from terrine_server.privacy import (
    Account,
    Composition,
    ConfidentMax,
    CostEvent,
    GaussianNoisyCounts,
    GaussianNoisyMax,
    GaussianThreshold,
    LaplaceArgmax,
    LaplaceNoisyMax,
    StabilityTest,
    additive_delta,
    build_mechanism,
    cap,
    epsilon_from_gdp,
    epsilon_from_rdp,
    gdp_budget,
    gdp_squared,
    quote,
    rdp,
    rdp_budget,
)
from terrine_server.privacy.curves import gdp_log_delta
from terrine_server.privacy.joint import (
    counts_excess,
    label_table,
    outcome_costs,
    release_cells,
)
from terrine_server.privacy.numbers import bit_rdp, log_tails
from terrine_server.privacy.published import (
    BoundRelease,
    Meter,
    gnmax_rdp,
    gnss_rdp,
    laplace_log_tails,
    lnmax_rdp,
    noisy_max_order,
    union_bound,
)

RECORDED = Path(__file__).parents[1] / "fixtures" / "recorded_prices.json"
DIGITS = 2e-11
"""Below the smallest margin, 1e-10, and above what another processor rounds differently."""
ORDERS = [1.05, 2.0, 6.5, 24.0, 150.0]


def confident(share: float, answered: bool = True, **changes: Any) -> ConfidentMax:
    values = {"teachers": 100, "classes": 10, "threshold": 70, "sigma1": 20.0, "sigma2": 12.0}
    values |= {"low": 10, "baseline": 0, "answer_share": share, "answered": answered}
    return ConfidentMax(**{**values, **changes})


EVENTS: tuple[CostEvent, ...] = (
    GaussianNoisyMax(4.0),
    GaussianNoisyMax(0.5, shift=3),
    GaussianNoisyCounts(7.5),
    GaussianThreshold(3.0, 20, 0, 40),
    GaussianThreshold(3.0, 20, 20, 20),
    GaussianThreshold(12.0, 55, 0, 40),
    GaussianThreshold(12.0, -9, -40, 40),
    GaussianThreshold(0.5, 3, 0, 40),
    GaussianThreshold(0.5, 0, 60, 90),  # it tells nothing, and is not free
    StabilityTest(2.0, 9, 24, 1e-6),
    StabilityTest(9.0, 50, 124, 1e-9),
    LaplaceNoisyMax(0.3),
    LaplaceNoisyMax(4.0, shift=2),
    LaplaceArgmax(0.01),
    LaplaceArgmax(0.3),
    LaplaceArgmax(2.0),
    LaplaceArgmax(30.0),
    Composition((GaussianNoisyMax(4.0), StabilityTest(2.0, 9, 24, 1e-6))),
    confident(1.0),
    confident(0.5),
    confident(0.5, answered=False),
    confident(3.0, answered=False),
    confident(1.0, classes=2, low=50),
    confident(0.7, classes=3, threshold=40, low=-100, baseline=30, answered=False),
    confident(1.5, threshold=95, sigma1=3.0, sigma2=40.0, answered=False),
)
JOINT: tuple[tuple[ConfidentMax, float], ...] = (
    (confident(1.0, sigma2=2.0), 35.0),  # hardly any order is higher for such a noise
    *(
        (event, order)
        for event in (
            *(confident(share) for share in (0.25, 1.0, 2.5)),
            confident(0.5, classes=2, low=50),
            confident(0.5, threshold=52, low=-100, baseline=0),
            confident(0.5, threshold=30, low=-100, baseline=40),
            confident(0.5, teachers=9, classes=4, threshold=6, sigma1=2.0, sigma2=3.0, low=3),
        )
        for order in (1.2, 3.0, 9.0)
    ),
)
VOTES = np.array([[40, 6, 3, 1], [30, 10, 5, 5], [13, 13, 12, 12], [25, 24, 1, 0], [50, 0, 0, 0]])


def costs(event: CostEvent) -> list[float]:
    return [gdp_squared(event), additive_delta(event), *floats(rdp(event, ORDERS))]


def joint(event: ConfidentMax, order: float) -> list[float]:
    known = outcome_costs(event, order)
    cells = release_cells(event, order, counts_excess(event.sigma2, order))
    shown = [] if known is None else [known.answer, known.abstention, known.flat]
    return [*shown, *(float(part.sum()) for part in (cells.abstained, cells.answered))]


def table(sigma: float, order: float) -> list[float]:
    found = label_table(sigma, order)
    rows = [0, 1, 2, len(found.tail) // 3, len(found.tail) - 1]
    columns = (found.tail, found.lose, found.gain, found.aside)
    full = counts_excess(sigma, order)
    bounds = found.bounds(np.array([52, 60, 77, 100]), 100, 5, full)
    return [
        full,
        *(float(column[row]) for column in columns for row in rows),
        *(float(bound) for column in bounds for bound in column),
    ]


def spends(mechanism: Mapping[str, Any]) -> list[float]:
    built = build_mechanism(mechanism, teachers=50, classes=4)
    meter = Meter(built.events(), teachers=50, classes=4, order=9.0)
    baselines = np.tile([20, 10, 10, 10], (len(VOTES), 1)) if built.needs_probabilities else None
    tally = np.zeros(meter.size, dtype=np.int64)
    shown = []
    for outcome in built.events():
        shown.append(meter.worst(outcome))
        for places in meter.places(outcome, VOTES, baselines):
            np.add.at(tally, list(places), 1)
    for spend in meter.spends(tally, [0.02, 0.2, 3.0]):
        shown += [spend.cost, spend.smooth_sensitivity]
    return [*shown, *meter.local_sensitivities(tally, 6).tolist()]


SPECS: tuple[Mapping[str, Any], ...] = (
    {"name": "lnmax", "gamma": 0.3},
    {"name": "gnmax", "sigma": 6.0},
    {"name": "confident_gnmax", "threshold": 30, "sigma1": 10.0, "sigma2": 6.0},
    {"name": "confident_gnmax", "threshold": 30, "sigma1": 10.0, "sigma2": 6.0, "answer_share": 1},
    {
        "name": "interactive_gnmax",
        "threshold": 10,
        "sigma1": 10.0,
        "sigma2": 6.0,
        "confidence": 0.9,
    },
    {"name": "immutable", "c": 2, "gamma": 0.3},
    {"name": "stable", "sigma": 1.5, "delta_per_query": 1e-6},
    {"name": "noisy_votes", "sigma": 6.0},
)


def terms(mechanism: Mapping[str, Any], limit: Any) -> list[float]:
    built = build_mechanism(mechanism, teachers=50, classes=4)
    quoted = quote(built, 9.0, 1e-4, cap_rule=limit.rule)
    return [
        quoted.budget,
        quoted.delta_budget,
        quoted.cap_budget,
        quoted.affordable(Account()),
        *(
            part
            for price in quoted.prices.values()
            for part in (price.cost, price.delta, price.cap_cost)
        ),
        quoted.epsilon_spent(quoted.budget // 3),
    ]


def floats(values: Any) -> list[float]:
    return [float(value) for value in np.ravel(values)]


CASES: Mapping[str, Callable[[], list[float]]] = {
    **{f"event {number}: {event}": partial(costs, event) for number, event in enumerate(EVENTS)},
    **{f"joint at {order}: {event}": partial(joint, event, order) for event, order in JOINT},
    **{
        f"labels at {sigma}, {order}": partial(table, sigma, order)
        for sigma, order in ((2.0, 1.5), (12.0, 3.0), (12.0, 40.0), (0.7, 2.0))
    },
    "tails": lambda: [*floats(log_tails(3.0, np.arange(-30, 31, 3))), *laplace_log_tails(0.3, 9)],
    "bits": lambda: floats(
        bit_rdp(log_tails(2.0, -np.arange(-9, 10)), log_tails(2.0, np.arange(-8, 11)), ORDERS)
    ),
    "answers at high orders": lambda: [
        *floats(rdp(LaplaceArgmax(0.01), [300.0, 1e3, 3e3, 3.9e3])),
        *floats(rdp(LaplaceArgmax(0.3), [60.0, 400.0, 800.0])),
        *floats(rdp(LaplaceArgmax(30.0), [1.5, 8.0])),
        *(gdp_squared(LaplaceArgmax(gamma)) for gamma in (0.001, 0.05, 1.0, 8.0, 50.0)),
    ],
    "budgets": lambda: [
        gdp_budget(epsilon, delta) for epsilon in (1e-4, 0.5, 8.0, 90.0) for delta in (0.3, 1e-9)
    ],
    "epsilons": lambda: [
        *(epsilon_from_gdp(mu, delta) for mu in (1e-8, 0.1, 9.0, 300.0) for delta in (0.01, 1e-9)),
        *(epsilon_from_rdp([0.3, 0.5, 0.9], [1.5, 4.0, 20.0], delta) for delta in (0.5, 1e-9)),
        *floats(rdp_budget([1.5, 4.0, 20.0], 2.0, 1e-6)),
    ],
    "deltas": lambda: [
        gdp_log_delta(epsilon, mu)
        for epsilon in (0.0, 0.1, 5.0, 60.0)
        for mu in (0.05, 1.0, 8.0, 12.0, 20.0)
    ],
    "noisy maxima": lambda: [
        *floats(gnmax_rdp([-1e-3, -2.0, -9.0, -60.0, -900.0], 6.0, ORDERS)),
        *floats(lnmax_rdp([-1e-3, -2.0, -9.0, -60.0, -900.0], 0.3, ORDERS)),
        *(noisy_max_order(sigma) for sigma in (0.5, 6.0, 300.0)),
        *floats(union_bound(VOTES, laplace_log_tails(0.3, 50))),
    ],
    "published figures": lambda: [
        *(gnss_rdp(9.0, beta, 20.0, shift) for beta in (1e-3, 0.02, 0.05) for shift in (1.0, 1.7)),
        *(BoundRelease(9.0, 0.02, 20.0, z).cost for z in (0.0, 5.0)),
        *(BoundRelease(9.0, 0.02, 20.0, z).failure for z in (0.0, 5.0)),
    ],
    **{f"spends of {spec}": partial(spends, spec) for spec in SPECS},
    **{
        f"terms of {spec}, {limit.rule}": partial(terms, spec, limit)
        for spec in SPECS
        for limit in (cap(20.0, 1e-3), cap(20.0, 1e-3, 9.0))
    },
}


@pytest.fixture(scope="module")
def recorded() -> dict[str, list[float]]:
    values: dict[str, list[float]] = json.loads(RECORDED.read_text())
    assert values.keys() == CASES.keys()
    return values


@pytest.mark.parametrize("case", CASES)
def test_costs_stay_what_they_are(case: str, recorded: dict[str, list[float]]) -> None:
    found = CASES[case]()
    assert same(found, recorded[case]), f"{found!r}, not {recorded[case]!r}"


def same(now: list[float], then: list[float]) -> bool:
    return len(now) == len(then) and all(
        math.isclose(a, b, rel_tol=DIGITS, abs_tol=0.0) for a, b in zip(now, then, strict=True)
    )


if __name__ == "__main__":
    known = json.loads(RECORDED.read_text())
    values = {case: run() for case, run in CASES.items()}
    # What this processor rounds differently stays as it was.
    kept = {case: known[case] for case in values if same(values[case], known.get(case, []))}
    print("\n".join(sorted(values.keys() - kept.keys())))  # noqa: T201
    RECORDED.write_text(json.dumps(values | kept, indent=1) + "\n")
