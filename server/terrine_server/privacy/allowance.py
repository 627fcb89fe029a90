"""What people with accounts may spend in a whole project: of the mechanism `neighbours`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from terrine_server.privacy.curves import gdp_budget, gdp_squared, rdp, rdp_budget
from terrine_server.privacy.events import NeighbourCounts
from terrine_server.privacy.numbers import COST_UNITS, SLACK, ceil_units
from terrine_server.privacy.parameters import ParameterError
from terrine_server.privacy.rules import GDP, Rule

# Accounts are stored in 32 bits.
MAX_ALLOWANCE = 2**32 - 1


@dataclass(frozen=True)
class Allowance:
    """`most`: A, what Σ‖v‖² of any unit never exceeds. `norm`: no vote has a larger ‖v‖.

    `sigma`: of the noise, the same for all queries. `queries`: how many are answered.
    """

    most: int
    norm: int
    sigma: float
    queries: int

    def most_spent(self, queries: int) -> int:
        """Return the most that any unit can have spent after so many queries, which is public."""
        return min(self.most, queries * self.norm**2)

    def cost(self, squared: int, rule: Rule) -> float:
        """Return what Σ‖v‖² = `squared` of every unit costs under a rule, rounded up."""
        return squared * _cost_of_one(self.sigma, rule)

    def cost_units(self, squared: int, rule: Rule) -> int:
        """Return `cost` in whole units, rounded up."""
        return ceil_units(self.cost(squared, rule), COST_UNITS)


def find_allowance(
    sigma: float, norm: int, queries: int, epsilon: float, delta: float
) -> tuple[Rule, Allowance]:
    """Return the larger of the allowances in Gaussian DP and in zCDP, and its rule.

    `delta`: for the conversion alone. Raises `ParameterError` if it is less than one whole vote.
    """
    order = best_order_of_allowance(epsilon, delta)
    found = {
        rule: largest_allowance(rule, sigma, epsilon, delta) for rule in (GDP, Rule("rdp", order))
    }
    rule = max(found, key=lambda rule: found[rule])
    most = min(found[rule], queries * norm**2, MAX_ALLOWANCE)
    if most < norm**2:
        raise ParameterError(
            f"epsilon = {epsilon:g} and sigma = {sigma:g} allow every person {most} in squared "
            f"votes over all queries, but a single vote may have {norm**2}: nobody could cast one. "
            "Use more noise, a larger epsilon or a smaller norm."
        )
    return rule, Allowance(most, norm, sigma, queries)


def largest_allowance(rule: Rule, sigma: float, epsilon: float, delta: float) -> int:
    """Return the largest A that implies (ε, δ)-DP under a rule, rounded down.

    Gaussian DP: ⌊μ²/(2·μ_Z(σ)²)⌋. Rényi DP at an order α: ⌊Bσ²⌋, B the largest ρ with which α·ρ
    implies (ε, δ).
    """
    if rule.order is None:
        budget = gdp_budget(epsilon, delta)
    else:
        budget = float(rdp_budget(rule.order, epsilon, delta)) * (1 - SLACK)
    each = Fraction(_cost_of_one(sigma, rule))
    return max(0, math.floor(Fraction(budget) / each))


def best_order_of_allowance(epsilon: float, delta: float) -> float:
    """Return the order at which ρ-zCDP implies (ε, δ) for the largest ρ.

    The whole project costs α·A/σ² at every order α at once, so any may be chosen beforehand.
    """
    from scipy.optimize import minimize_scalar  # late: most commands compute no budget

    found = minimize_scalar(
        lambda log: -float(rdp_budget(1 + math.exp(log), epsilon, delta)) / (1 + math.exp(log)),
        bounds=(math.log(1e-3), math.log(1e3 * (1 - math.log(delta)) / min(epsilon, 1.0))),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return float(f"{1 + math.exp(found.x):.9g}")


def _cost_of_one(sigma: float, rule: Rule) -> float:
    """Return what ‖v‖² = 1 costs under a rule, rounded up."""
    event = NeighbourCounts(sigma, norm=1)
    cost = gdp_squared(event) if rule.order is None else float(rdp(event, rule.order))
    return cost * (1 + SLACK)
