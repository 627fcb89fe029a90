"""Publish a secret spend: f + noise scaled to its smooth sensitivity (P18's GNSS, corrected).

P18 (arXiv 1802.08908, Theorem 23) prices the release f + SS_β·N(0, σ²) at order λ by
λe^{2β}/σ² + (βλ − ½ ln(1 − 2βλ))/(λ − 1). That is an upper bound for βλ ≤ 1/4 only; the paper's own
tables use 0.30 to 0.495, where it can be several times too small. This module uses the exact worst
case over all functions with that smooth sensitivity.

With f(D) = f, f(D′) = f′ and ρ = SS(D′)/SS(D) ∈ [e^{−β}, e^{β}], |f − f′| ≤ SS(D)·min(1, ρ), and

    D_λ = λ(f − f′)²/(2σ²SS²v) + (λ ln ρ − ½ ln v)/(λ − 1),    v = 1 − λ + λρ²,

if v > 0, else infinite. Up to ρ = 1 both terms fall in ρ. Above it the first falls and the second
rises. So D_λ is at most the value at ρ = e^{−β}, which is attained, or the first term at ρ = 1 plus
the second at e^{β}.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import mpmath
from scipy.special import ndtr

from terrine_server.privacy.accounting.checks import MARGIN, check_orders
from terrine_server.privacy.accounting.events import PublishedBound
from terrine_server.privacy.accounting.units import COST_UNITS, SLACK
from terrine_server.privacy.noise import BITS, Entropy
from terrine_server.privacy.parameters import ParameterError, real, within

GRID = COST_UNITS // 1000
"""Published figures are multiples of this: 1e-3 of Rényi divergence, in units of 1e-12."""

PRECISION = BITS + 64


@dataclass(frozen=True)
class ActualCost:
    """The data-dependent cost of a transcript and its β-smooth sensitivity. Both are secret."""

    cost: float
    smooth_sensitivity: float


@dataclass(frozen=True)
class BoundRelease:
    """A release of U ≥ f at one order: U = f + SS_β·sigma·(Z + z), Z ~ N(0, 1), clamped.

    SS_β itself is secret, so an error bar ± SS·σ could not be published with the figure. Instead,
    the figure is already an upper bound. All parameters are public and fixed before any query.
    Raises `ParameterError` if order × beta is outside the range in which the release has a price.
    """

    order: float
    beta: float
    sigma: float
    z: float

    def __post_init__(self) -> None:
        check_orders(self.order)
        check_beta(self.beta)
        within("sigma", self.sigma, 1e-3, 1e9, "it multiplies the smooth sensitivity")
        within("z", self.z, 0, 30, "it is how many standard deviations U lies above f on average")
        if _shrunk_variance(self.order, self.beta) <= 0:
            raise ParameterError(
                f"order·(1 − exp(−2·beta)) must be below 1, but it is "
                f"{1 - _shrunk_variance(self.order, self.beta):g}: the release would have no "
                f"finite price. Use a beta below {-math.log1p(-1 / self.order) / 2:.4g}."
            )

    @classmethod
    def of(cls, event: PublishedBound) -> BoundRelease:
        """Return the release that an event records."""
        return cls(event.order, event.beta, event.sigma, event.z)

    @property
    def event(self) -> PublishedBound:
        """The event that the ledger records for one release."""
        return PublishedBound(self.order, self.beta, self.sigma, self.z)

    @property
    def cost(self) -> float:
        """The Rényi divergence of one release at the order, rounded up.

        z·σ·SS moves by at most z·σ·(e^β − 1)·min(SS, SS′), in addition to the move of f.
        """
        shift = 1 + self.z * self.sigma * math.expm1(self.beta)
        return gnss_rdp(self.order, self.beta, self.sigma, shift)

    @property
    def failure(self) -> float:
        """The probability η that U < f, rounded up. It adds to δ."""
        return float(ndtr(-self.z)) * (1 + SLACK)

    def release(self, spend: ActualCost, worst: int, entropy: Entropy = os.urandom) -> int:
        """Draw U, in units of 1e-12, as a multiple of the public grid or `worst` itself.

        `worst`: the public worst-case cost of the same transcript, in units of 1e-12. One 256-bit
        uniform goes through the inverse normal distribution in 320-bit arithmetic. The result is
        rounded up to the grid, so no low-order bit of a secret is released.
        """
        if not (0 <= spend.cost < math.inf and 0 < spend.smooth_sensitivity < math.inf):
            raise ParameterError("A spend has a finite cost ≥ 0 and smooth sensitivity > 0.")
        data = entropy(BITS // 8)
        if len(data) != BITS // 8:
            raise RuntimeError("The source of randomness returned too few bytes; nothing drawn.")
        exact = mpmath.MPContext()  # our own: any thread may change the global one's precision
        exact.prec = PRECISION
        # 2u − 1 with u = (k + ½)/2²⁵⁶, exactly.
        centred = exact.ldexp(2 * int.from_bytes(data) + 1 - (1 << BITS), -BITS)
        normal = exact.sqrt(2) * exact.erfinv(centred)
        scale = exact.mpf(spend.smooth_sensitivity) * self.sigma
        bound = exact.mpf(spend.cost) + scale * (normal + self.z)
        steps = int(exact.ceil(bound * COST_UNITS / GRID))
        return max(0, min(steps * GRID, worst))


def check_beta(beta: object) -> float:
    """Return a smoothness parameter; raise `ParameterError` unless it is positive."""
    value = real("beta", beta)
    if value <= 0:
        raise ParameterError(f"beta = {value:g} must be positive: it is the rate of smoothing.")
    return value


def gnss_rdp(order: float, beta: float, sigma: float, shift: float = 1.0) -> float:
    """Return the worst-case divergence of f + SS_β·N(0, sigma²) at `order`, rounded up.

    `shift`: the mean moves by at most `shift`·min(SS, SS′). Infinite if the noise of a neighbour
    can be too narrow, order·(1 − e^{−2β}) ≥ 1.
    """
    variance = _shrunk_variance(order, beta)
    if variance <= 0:
        return math.inf
    mean = order * (shift / sigma) ** 2 / 2
    grown = math.log1p(order * math.expm1(2 * beta))
    down = mean * math.exp(-2 * beta) / variance
    down += (-order * beta - math.log(variance) / 2) / (order - 1)
    up = mean + (order * beta - grown / 2) / (order - 1)
    return max(down, up) * (1 + MARGIN)


def _shrunk_variance(order: float, beta: float) -> float:
    """1 − λ + λe^{−2β}."""
    return 1 + order * math.expm1(-2 * beta)
