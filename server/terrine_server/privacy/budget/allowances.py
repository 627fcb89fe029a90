"""How much of each unit's presence a `neighbours` project may use: A, in units of ‖v‖².

One A bounds the whole project, whatever is asked (docs/privacy/neighbours.md): it is A/σ²-zCDP, and
√(2A)·μ_Z(σ)-GDP. What a person has spent of A is secret, so the project's public balance counts its
queries alone: each debits one `queries`-th of the budget. What it takes of the ensemble's cap grows
by norm² a query, in the cap's own unit, and never beyond A.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from scipy.optimize import minimize_scalar

from terrine_server.privacy.accounting.conversions import gdp_budget, rdp_budget
from terrine_server.privacy.accounting.curves import gdp_squared, rdp
from terrine_server.privacy.accounting.events import NeighbourCounts
from terrine_server.privacy.accounting.units import COST_UNITS, SLACK, ceil_units
from terrine_server.privacy.budget.rules import GDP, Rule
from terrine_server.privacy.parameters import ParameterError

MOST = 2**32 - 1
"""Accounts are stored in 32 bits."""


@dataclass(frozen=True)
class Allowance:
    """`most`: A, what Σ‖v‖² of any unit never exceeds. `norm`: no vote has a larger ‖v‖.

    `sigma`: of the noise, the same for all queries. `queries`: how many are answered.
    """

    most: int
    norm: int
    sigma: float
    queries: int

    def used(self, queries: int) -> int:
        """Return the most that any unit can have spent after so many queries, which is public."""
        return min(self.most, queries * self.norm**2)

    def worth(self, squared: int, rule: Rule) -> float:
        """Return what Σ‖v‖² = `squared` of every unit costs under a rule, rounded up."""
        return squared * _each(self.sigma, rule)

    def units(self, squared: int, rule: Rule) -> int:
        """Return `worth` in whole units, rounded up."""
        return ceil_units(self.worth(squared, rule), COST_UNITS)


def allowance(
    sigma: float, norm: int, queries: int, epsilon: float, delta: float
) -> tuple[Rule, Allowance]:
    """Return the larger of the allowances in Gaussian DP and in zCDP, and the rule that it is by.

    `delta`: for the conversion alone. Raises `ParameterError` if it is less than one whole vote.
    """
    order = best_order(epsilon, delta)
    found = {rule: largest(rule, sigma, epsilon, delta) for rule in (GDP, Rule("rdp", order))}
    rule = max(found, key=lambda rule: found[rule])
    most = min(found[rule], queries * norm**2, MOST)
    if most < norm**2:
        raise ParameterError(
            f"epsilon = {epsilon:g} and sigma = {sigma:g} allow every person {most} in squared "
            f"votes over all queries, but a single vote may have {norm**2}: nobody could cast one. "
            "Use more noise, a larger epsilon or a smaller norm."
        )
    return rule, Allowance(most, norm, sigma, queries)


def largest(rule: Rule, sigma: float, epsilon: float, delta: float) -> int:
    """Return the largest A that implies (ε, δ)-DP under a rule, rounded down.

    Gaussian DP: ⌊μ²/(2·μ_Z(σ)²)⌋. Rényi DP at an order α: ⌊Bσ²⌋, B the largest ρ with which α·ρ
    implies (ε, δ).
    """
    if rule.order is None:
        budget = gdp_budget(epsilon, delta)
    else:
        budget = float(rdp_budget(rule.order, epsilon, delta)) * (1 - SLACK)
    each = Fraction(_each(sigma, rule))
    return max(0, math.floor(Fraction(budget) / each))


def best_order(epsilon: float, delta: float) -> float:
    """Return the order at which ρ-zCDP implies (ε, δ) for the largest ρ.

    The whole project costs α·A/σ² at every order α at once, so any may be chosen beforehand.
    """
    found = minimize_scalar(
        lambda log: -float(rdp_budget(1 + math.exp(log), epsilon, delta)) / (1 + math.exp(log)),
        bounds=(math.log(1e-3), math.log(1e3 * (1 - math.log(delta)) / min(epsilon, 1.0))),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return float(f"{1 + math.exp(found.x):.9g}")


def _each(sigma: float, rule: Rule) -> float:
    """Return what ‖v‖² = 1 costs under a rule, rounded up."""
    event = NeighbourCounts(sigma, norm=1)
    cost = gdp_squared(event) if rule.order is None else float(rdp(event, rule.order))
    return cost * (1 + SLACK)
