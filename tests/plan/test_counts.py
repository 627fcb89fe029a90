"""The noise at which one budget pays for the noisy counts of every row."""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from terrine_server.planning.first_project import fitted_noise, sigma_for_rows
from terrine_server.privacy import Account, ParameterError, build_mechanism, gdp_budget, quote


@pytest.mark.slow
@settings(max_examples=15)
@given(st.integers(1, 20_000), st.sampled_from([0.2, 1.0, 3.0]))
def test_every_row_is_paid_for_and_with_a_little_less_noise_it_is_not(
    rows: int, epsilon: float
) -> None:
    try:
        sigma = sigma_for_rows(rows, 1000, 10, epsilon, 1e-5)
    except ParameterError:
        reject()  # more noise than can be drawn

    def affordable(sigma: float) -> int:
        spec = {"name": "noisy_votes", "sigma": sigma}
        mechanism = build_mechanism(spec, teachers=1000, classes=10)
        return quote(mechanism, epsilon, 1e-5).affordable(Account())

    assert affordable(sigma) >= rows
    assert sigma == float(f"{sigma:.3g}")
    if sigma > 1:
        step = 10.0 ** (math.floor(math.log10(sigma)) - 2)
        less = sigma - 2 * step
        with suppress(ParameterError):  # it does not pay for a single query
            assert affordable(less) < rows
    assert sigma >= math.sqrt(2 * rows / gdp_budget(epsilon, 1e-5)) * 0.99


def test_fitted_shares_have_the_noise_that_is_announced() -> None:
    source, rows, features = np.random.default_rng(5), 4000, 40
    x = source.normal(size=(rows, features))
    shares = x @ source.normal(size=features) / 50
    errors = []
    for _ in range(30):
        noisy = shares + source.normal(scale=300 / 1000, size=rows)
        errors.append(x @ np.linalg.lstsq(x, noisy, rcond=None)[0] - shares)
    assert np.std(errors) == pytest.approx(fitted_noise(rows, 1000, 300.0, features), rel=0.05)
