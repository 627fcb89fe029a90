"""How many answers a budget buys with Gaussian noise: paid for the answer, or for the noisy counts.

All prices are worst case. Counts: as `noisy_votes` is priced on an ensemble whose cap adds
up in Gaussian DP. Answer: what `terrine project open` finds on
one whose cap adds up in Rényi DP.

Cited, from an analysis made beside this one: `reserve`, a filter in Gaussian DP that keeps part of
the budget back, of which only σ = 5 is certified; and `limit`, exact composition of ties of two
classes, asked without adapting: no accountant can sell more.
"""

from __future__ import annotations

import math
import time

from terrine_server.planning.opening import Quote, choose
from terrine_server.privacy import ParameterError, Rule, build_mechanism, cap_order, gaussian, rdp

DELTA = 1e-5
EPSILONS = (0.3, 1.0, 2.0)
SIGMAS = (5.0, 20.0, 40.0, 100.0, 300.0)
CITED = {  # reserve, limit
    20.0: ((1, 5), (17, 24), (70, 81)),
    40.0: ((7, 11), (80, 92), (299, 319)),
    100.0: ((54, 63), (542, 566), (1927, 1977)),
    300.0: ((537, 561), (4980, 5080), (17476, 17782)),
}


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
    print("sigma  epsilon   counts   answer  gain     order   share  reserve    limit   opened in")
    in_rdp, in_gdp = Rule("rdp", cap_order(8.0, DELTA)), Rule("gdp")
    for sigma in SIGMAS:
        for place, epsilon in enumerate(EPSILONS):
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
            cited = CITED[sigma][place] if sigma in CITED else ("", "")
            print(
                f"{sigma:<5g}  {epsilon:<7g}  {before:>7,}  {now:>7,}"
                f"  {f'{now / before:.2f}' if before else '':>4}"
                f"  {f'{order:.2f}' if order else 'gdp':>8}"
                f"  {f'{share:.4f}' if order else '':>6}"
                f"  {cited[0]:>7}  {cited[1]:>7}  {seconds * 1e3:>7.0f} ms"
            )
    print("\nsigma  first price  at another order")
    for sigma in (*SIGMAS, 10_000.0):
        first, again = timed(sigma, 12.0)
        print(f"{sigma:<5g}  {first * 1e3:>8.0f} ms  {again * 1e3:>13.0f} ms")
