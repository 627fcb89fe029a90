"""How many answers a budget buys with Gaussian noise: paid for the answer, or for the noisy counts.

All prices are worst case. Counts: as `noisy_votes` is priced on an ensemble whose cap adds
up in Gaussian DP. Answer: what `terrine project open` finds on
one whose cap adds up in Rényi DP.
"""

from __future__ import annotations

import math
import time

from terrine_server.planning.opening import Quote, choose
from terrine_server.privacy import ParameterError, Rule, build_mechanism, cap_order, gaussian, rdp

DELTA = 1e-5
EPSILONS = (0.3, 1.0, 2.0)
SIGMAS = (5.0, 20.0, 40.0, 100.0, 300.0)


def opened(sigma: float, epsilon: float, cap_rule: Rule, name: str) -> Quote | None:
    spec = {"name": name, "sigma": sigma}
    mechanism = build_mechanism(spec, teachers=2000, classes=10)
    try:
        return choose(mechanism, epsilon, DELTA, cap_rule=cap_rule)
    except ParameterError:
        return None


def timed(sigma: float, order: float) -> tuple[float, float]:
    """Seconds to price an answer at an order, and then at another."""
    gaussian._laws.cache_clear()
    gaussian.gaussian_argmax_rdp.cache_clear()
    (event,) = (
        build_mechanism({"name": "gnmax", "sigma": sigma}, teachers=2000, classes=10)
        .events()
        .values()
    )
    seconds = []
    for each in (order, order * 0.99):
        start = time.perf_counter()
        rdp(event, each)
        seconds.append(time.perf_counter() - start)
    return seconds[0], seconds[1]


if __name__ == "__main__":
    print(f"answers for a budget, delta = {DELTA:g}")
    print("sigma  epsilon   counts   answer  gain     order   share  opened in")
    in_rdp, in_gdp = Rule("rdp", cap_order(8.0, DELTA)), Rule("gdp")
    for sigma in SIGMAS:
        for epsilon in EPSILONS:
            old = opened(sigma, epsilon, in_gdp, "noisy_votes")
            start = time.perf_counter()
            new = opened(sigma, epsilon, in_rdp, "gnmax")
            seconds = time.perf_counter() - start
            before, now = (int(quoted.answers) if quoted else 0 for quoted in (old, new))
            order = new.terms.rule.order if new else None
            share = math.nan
            if new and order:
                (event,) = new.mechanism.events().values()
                share = float(rdp(event, order)) / (order / sigma**2)
            print(
                f"{sigma:<5g}  {epsilon:<7g}  {before:>7,}  {now:>7,}"
                f"  {f'{now / before:.2f}' if before else '':>4}"
                f"  {f'{order:.2f}' if order else 'gdp':>8}"
                f"  {f'{share:.4f}' if order else '':>6}"
                f"  {seconds * 1e3:>7.0f} ms"
            )
    print("\nsigma  first price  at another order")
    for sigma in (*SIGMAS, 10_000.0):
        first, again = timed(sigma, 12.0)
        print(f"{sigma:<5g}  {first * 1e3:>8.0f} ms  {again * 1e3:>13.0f} ms")
