"""How many answers a budget buys with Laplace noise: paid for the answer, or for the noisy counts.

Both prices are worst case and proven. The second is what the 2017 paper charges (pure 2γ-DP, added
up in Rényi DP at the best order), and what `immutable` without extra votes is charged.
Gaussian noise of the same spread stands beside them.
"""

from __future__ import annotations

import math
import time

from terrine_server.privacy import Account, ParameterError, build_mechanism, quote

DELTA = 1e-5


def answers(epsilon: float, **spec: object) -> int:
    mechanism = build_mechanism(spec, teachers=1000, classes=10)
    try:
        return quote(mechanism, epsilon, DELTA).affordable(Account())
    except ParameterError:
        return 0


if __name__ == "__main__":
    print(f"answers for a budget, delta = {DELTA:g}")
    print("gamma  epsilon  noisy counts  answer alone  gain  Gaussian, as wide     priced in")
    for gamma in (0.001, 0.005, 0.02, 0.05, 0.25):
        for epsilon in (1.0, 2.0, 8.0):
            before = answers(epsilon, name="immutable", c=0, gamma=gamma)
            start = time.perf_counter()
            now = answers(epsilon, name="lnmax", gamma=gamma)
            seconds = time.perf_counter() - start
            gaussian = answers(epsilon, name="gnmax", sigma=math.sqrt(2) / gamma)
            print(
                f"{gamma:<5g}  {epsilon:<7g}  {before:>12,}  {now:>12,}  {now / before:>4.2f}"
                f"  {gaussian:>17,}  {seconds * 1e3:>9.0f} ms"
            )
