"""The joint price against golden values, many digits, and exact laws of a large ensemble."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from support.laws import passing, release
from terrine_server.privacy.joint import (
    costs_up_to,
    counts_excess,
    label_table,
    outcome_costs,
)
from terrine_server.privacy.numbers import bernoulli_rdp, complements, log_tails


@pytest.mark.parametrize(
    ("parameters", "order", "flat", "half", "whole"),
    [
        ((250, 10, 200, 150.0, 40.0), 14.0, 3.4155054622e-03, 4.4919672655e-03, 3.4155054601e-03),
        ((250, 10, 200, 50.0, 37.5), 17.8, 3.3008947081e-03, 3.9626315562e-03, 3.3008947074e-03),
        ((1000, 10, 800, 300.0, 100.0), 18.0, 3.6247474323e-04, 4.0195158425e-04, 3.6247474315e-04),
        ((2000, 10, 1600, 400.0, 300.0), 17.8, 4.4250696507e-05, 5.7217406887e-05, 4.425069649e-05),
        ((2000, 10, 1600, 400.0, 300.0), 40.0, 1.0082860057e-04, 1.2948803012e-04, 1.008286005e-04),
        ((2000, 2, 1600, 400.0, 300.0), 17.8, 4.3290659196e-05, 5.7655309696e-05, 4.3290659182e-05),
        ((2000, 100, 1600, 400.0, 200.0), 17.8, 4.9331231764e-05, 5.299804464e-05, 4.9331231760e-5),
        ((5000, 10, 3500, 1500.0, 100.0), 20.0, 5.2714522197e-4, 6.2361598694e-4, 5.2714522178e-04),
        ((12, 3, 8, 1.5, 1.5), 5.0, 3.0800335838, math.inf, 3.0791969958),
        ((9, 4, 6, 0.6, 3.0), 2.0, 2.6693599029, math.inf, 2.6693598501),
    ],
)
def test_prices_have_their_golden_values(
    parameters: tuple[int, int, int, float, float],
    order: float,
    flat: float,
    half: float,
    whole: float,
) -> None:
    """If a label told all noisy counts near a tie. What is charged is no more than that."""
    event = release(*parameters)
    one, part = costs_up_to(event, (1.0, 0.5), order, counts_excess(event.sigma2, order))
    assert one is not None
    assert one.flat == pytest.approx(flat, rel=1e-9)
    assert one.flat >= flat * (1 - 1e-9)
    # Margins are relative to what is subtracted, so here they show a little more.
    loose = 1e-8 if flat < 1 else 1e-3
    assert one.abstention == pytest.approx(whole, rel=loose)
    if part is None:
        assert half == math.inf
    else:
        assert part.abstention == pytest.approx(half, rel=loose)
    charged = outcome_costs(event, order)
    assert charged is not None
    assert charged.flat <= one.flat


@pytest.mark.parametrize(("sigma", "order", "k"), [(10, 8, 20), (12, 40, 96), (12, 40, 150)])
def test_a_label_table_agrees_with_sixty_digits(sigma: int, order: int, k: int) -> None:
    """Where the concave majorant touches the sums, and where its chord is nearly as steep."""
    with mpmath.workdps(60):
        end = 8 * sigma + 60 * order // 4
        thetas = [
            mpmath.fsum(
                mpmath.e ** (-((j + mpmath.mpf(half) / 2) ** 2) / sigma**2)
                for j in range(-20 * sigma, 20 * sigma)
            )
            for half in (0, 1)
        ]
        weigh = [
            mpmath.e ** (-mpmath.mpf(j * j) / (4 * sigma**2)) * thetas[j % 2]
            for j in range(-end - 2, end + 1)
        ]
        total = mpmath.fsum(weigh)
        law = {j - end - 2: mass / total for j, mass in enumerate(weigh)}

        def psi(x: mpmath.mpf) -> mpmath.mpf:
            return x**order - order * x + order - 1

        sums, tails = {end + 1: mpmath.mpf(0)}, {end + 1: mpmath.mpf(0)}
        for j in range(end, -end - 1, -1):
            sums[j] = sums[j + 1] + law[j - 2] * psi(law[j] / law[j - 2])
            tails[j] = tails[j + 1] + law[j]
        slopes = {j: (sums[-end] - sums[j]) / (1 - tails[j]) for j in range(1, end)}
        touch = min(slopes, key=lambda j: slopes[j])
        chord = sums[touch] + slopes[touch] * (tails[k] - tails[touch])
        most = sums[k] if k >= touch else max(sums[k], chord)
        moved = 1 - tails[k] - law[k - 1] - law[k - 2]
        exact = float(most + moved * psi((1 - tails[k]) / moved))
    assert label_table(sigma, order).lose[k] == pytest.approx(exact, rel=3e-9)
    assert label_table(sigma, order).lose[k] >= exact


def test_the_bit_of_wide_noise_agrees_with_forty_digits() -> None:
    """Where logarithms of neighbouring tails nearly cancel: sigma 2000, near and far."""
    sigma, order, reach = 2000, 20, 14 * 2000
    with mpmath.workdps(40):
        squares = (mpmath.mpf(y * y) for y in range(reach, -reach - 1, -1))
        tails, total = {}, mpmath.mpf(0)
        for y, square in zip(range(reach, -reach - 1, -1), squares, strict=True):
            total += mpmath.exp(-square / (2 * sigma**2))
            tails[y] = total
        exact = {}
        for margin in (0, 2000, -6000, 9000):
            p, p2 = (tails[-m] / total for m in (margin, margin - 1))
            parts = p**order * p2 ** (1 - order), (1 - p) ** order * (1 - p2) ** (1 - order)
            exact[margin] = float(mpmath.log(mpmath.fsum(parts)) / (order - 1))
    for margin, cost in exact.items():
        here, there = (np.array([m]) for m in (margin, margin - 1))
        logs = [
            complements(log_tails(float(sigma), -m), log_tails(float(sigma), m + 1))
            for m in (here, there)
        ]
        found = float(bernoulli_rdp(*logs[0], *logs[1], float(order))[0])
        assert found == pytest.approx(cost, rel=1e-7)
        assert found >= cost


def test_the_price_is_close_to_the_worst_vote_of_two_classes() -> None:
    """Exact laws of two classes of 2,000 teachers: nothing is 6 % worse than what is found."""
    event, order = release(2000, 2, 1600, 400.0, 300.0), 17.8
    costs = outcome_costs(event, order)
    assert costs is not None
    noise = np.exp(-(np.arange(-5000, 5001) ** 2) / (2 * 300.0**2))
    difference = np.convolve(noise / noise.sum(), noise / noise.sum())  # of Y − Y'
    loses = np.cumsum(difference)  # Pr[Y − Y' ≤ k], k = −10000, …

    def labels(top: int) -> np.ndarray:
        wrong = loses[10_000 - (2 * top - 2000) - 1]  # ties go to the class with more votes
        return np.array([1 - wrong, wrong])

    found = 0.0
    for top in range(1250, 1380, 5):
        (p, f), (p2, f2) = (passing(v - 1600, 400.0) for v in (top, top - 1))
        label = float(np.sum(labels(top) ** order * labels(top - 1) ** (1 - order)))
        total = f**order * f2 ** (1 - order) + p**order * p2 ** (1 - order) * label
        found = max(found, math.log(total) / (order - 1))
    assert 0.96 * costs.flat < found <= costs.flat
