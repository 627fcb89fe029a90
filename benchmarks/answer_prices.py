"""How many answers a budget buys: paid for the answer alone, or for all noisy counts.

    python benchmarks/answer_prices.py

All prices are worst case. Gaussian noise: counts as `noisy_votes` is priced where the cap adds up
in Gaussian DP, the answer as `terrine project open` prices `gnmax` where it adds up in Rényi DP.
Laplace noise: counts as the 2017 paper charges them (pure 2γ-DP, at the best Rényi order), and as
`immutable` without extra votes is charged; the answer as `lnmax` is; and `gnmax` as wide beside it.
"""

from __future__ import annotations

import math
from itertools import product

from terrine_server.planning.opening import choose
from terrine_server.privacy import (
    GDP,
    Account,
    ParameterError,
    Rule,
    build_mechanism,
    cap_order,
    quote,
)

DELTA = 1e-5
RDP = Rule("rdp", cap_order(8.0, DELTA))


def opened(epsilon: float, cap_rule: Rule, **spec: object) -> int:
    """Answers that are certain where a project is opened at the best order."""
    mechanism = build_mechanism(spec, teachers=2000, classes=10)
    try:
        return int(choose(mechanism, epsilon, DELTA, cap_rule=cap_rule).answers)
    except ParameterError:
        return 0


def quoted(epsilon: float, **spec: object) -> int:
    """Answers of 1,000 teachers at the worst-case price."""
    mechanism = build_mechanism(spec, teachers=1000, classes=10)
    try:
        return quote(mechanism, epsilon, DELTA).affordable(Account())
    except ParameterError:
        return 0


def line(width: float, epsilon: float, counts: int, answer: int) -> str:
    gain = f"{answer / counts:.2f}" if counts else ""
    return f"{width:<5g}  {epsilon:<7g}  {counts:>7,}  {answer:>7,}  {gain:>4}"


if __name__ == "__main__":
    print(f"answers for a budget, delta = {DELTA:g}")
    print("sigma  epsilon   counts   answer  gain")
    for sigma, epsilon in product((5.0, 20.0, 40.0, 100.0, 300.0), (0.3, 1.0, 2.0)):
        counts = opened(epsilon, GDP, name="noisy_votes", sigma=sigma)
        print(line(sigma, epsilon, counts, opened(epsilon, RDP, name="gnmax", sigma=sigma)))
    print("\ngamma  epsilon   counts   answer  gain  Gaussian, as wide")
    for gamma, epsilon in product((0.001, 0.005, 0.02, 0.05, 0.25), (1.0, 2.0, 8.0)):
        counts = quoted(epsilon, name="immutable", c=0, gamma=gamma)
        answer = quoted(epsilon, name="lnmax", gamma=gamma)
        wide = quoted(epsilon, name="gnmax", sigma=math.sqrt(2) / gamma)
        print(f"{line(gamma, epsilon, counts, answer)}  {wide:>17,}")
