"""How many right answers a joint price buys, beside test and maximum charged apart, on real votes.

Votes of 250, 1,000 and 2,000 teachers on 10,000 MNIST test images (recorded; read from
TERRINE_SHARED_DATA, else from ../shared/data beside the repository). For each way of pricing, the
parameters of confident_gnmax that buy the most answers are searched, among those whose answers are
right often enough. Then the mechanism runs with real noise, on images in random order, until its
price list refuses; the mean of several runs is printed beside the expectation.

    python benchmarks/joint_price.py
"""

from __future__ import annotations

import argparse
import time
from itertools import product

import numpy as np

from datasets import recorded
from terrine_server.planning.opening import Quote, Votes, choose, expected_outcomes, quotes
from terrine_server.privacy import Rule, VoteOutcome, build_mechanism, cap_order, quote
from terrine_server.privacy.mechanisms import ConfidentGNMax
from terrine_server.privacy.parameters import ParameterError

DELTA = 1e-5
CASES = [
    (2000, 0.97, (1.0, 0.6, 0.3, 0.1)),
    (1000, 0.97, (1.0, 0.3, 0.1)),
    (250, 0.98, (1.0, 0.2)),
]
"""Teachers, the share of answers that must be right, and ε."""
THRESHOLDS = (0.5, 0.55, 0.6, 0.625, 0.65, 0.7, 0.75, 0.8, 0.9, 1.0)
SIGMA1 = (0.1, 0.125, 0.15, 0.2, 0.248, 0.3, 0.4, 0.6)
SIGMA2 = (0.13, 0.1585, 0.165, 0.1735, 0.18, 0.19, 0.21)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="projects with real noise")
    runs = parser.parse_args().runs
    compare_times()
    print(f"\nAnswers for ε at δ = {DELTA:g}; right: share of the answers that must be right.")
    print("teachers  right    ε   priced     expected   with real noise     right  parameters")
    for teachers, right, budgets in CASES:
        counts, labels = recorded(f"mnist_{teachers}")
        votes = Votes.observed(counts, labels, teachers=teachers)
        found = candidates(votes, right)
        for epsilon in budgets:
            for name, quoted, rate in best(found, epsilon):
                answers, share = simulated(quoted, counts, labels, runs)
                m = quoted.mechanism
                assert isinstance(m, ConfidentGNMax)
                print(
                    f"{teachers:8,}  {right:.0%}  {epsilon:4g}   {name:9}  "
                    f"{quoted.answers:8,.0f}   "
                    f"{answers:8,.0f} (mean of {runs})  {share:6.2%}  T {m.threshold}, "
                    f"σ₁ {m.sigma1:g}, σ₂ {m.sigma2:g}, {rate:.1%} pass, {quoted.terms.rule}",
                    flush=True,
                )


def candidates(votes: Votes, right: float) -> list[tuple[ConfidentGNMax, float]]:
    """Return every mechanism whose answers are right often enough, and how many queries pass."""
    found = []
    for t, s1, s2 in product(THRESHOLDS, SIGMA1, SIGMA2):
        n = votes.teachers
        mechanism = ConfidentGNMax(n, votes.counts.shape[1], round(t * n), s1 * n, s2 * n)
        expected = expected_outcomes(mechanism, votes)
        if expected.accuracy >= right and expected.answered > 0:
            found.append((mechanism, expected.shares[VoteOutcome.ANSWERED]))
    return found


def best(
    found: list[tuple[ConfidentGNMax, float]], epsilon: float
) -> list[tuple[str, Quote, float]]:
    """Return the best mechanism priced apart, and the best one priced jointly."""
    order = cap_order(epsilon, DELTA)
    priced: dict[str, tuple[str, Quote, float]] = {}
    for mechanism, rate in found:
        try:
            cap_rule = Rule("rdp", order)
            both = quotes(mechanism, epsilon, DELTA, cap_rule=cap_rule, pass_rate=rate, order=order)
        except ParameterError:
            continue
        for quoted in both:
            name = "apart" if quoted.answer_share is None else "jointly"
            if name not in priced or quoted.answers > priced[name][1].answers:
                priced[name] = (name, quoted, rate)
    return [priced[name] for name in ("apart", "jointly") if name in priced]


def simulated(
    quoted: Quote, counts: np.ndarray, labels: np.ndarray, runs: int
) -> tuple[float, float]:
    """Return the mean number of answers until the price list refuses, and how many are right."""
    source, terms = np.random.default_rng(3), quoted.terms
    answers = right = 0
    for _ in range(runs):
        spent, refused = 0, False
        while not refused:
            order = source.permutation(len(counts))
            released = quoted.mechanism.release(counts[order])
            costs = np.array([terms.prices[outcome].cost for outcome in released.outcomes])
            before = spent + np.concatenate([[0], np.cumsum(costs)[:-1]])
            paid = before + terms.worst.cost <= terms.budget
            refused, spent = not paid.all(), int(before[-1] + costs[-1])
            answered = paid & (released.labels >= 0)
            answers += int(answered.sum())
            right += int((released.labels == labels[order])[answered].sum())
    return answers / runs, right / max(1, answers)


def compare_times() -> None:
    """Print how long it takes to open a project and to price a query, by the wall clock."""
    spec = {"name": "confident_gnmax", "threshold": 1600, "sigma1": 400.0, "sigma2": 300.0}
    mechanism = build_mechanism(spec, teachers=2000, classes=10)
    quote(mechanism, 1.0, DELTA)  # makes the tables of noise
    started = time.perf_counter()
    quote(mechanism, 1.0, DELTA)
    apart = time.perf_counter() - started
    started = time.perf_counter()
    chosen = choose(mechanism, 1.0, DELTA, cap_rule=Rule("rdp", 17.7), pass_rate=0.7)
    jointly = time.perf_counter() - started
    print(f"Terms of 2,000 teachers: {apart:.3f} s apart, {jointly:.3f} s chosen among all rules.")
    if chosen.terms.choice is not None:
        for each in chosen.terms.choice.considered:
            print(f"  {each}")


if __name__ == "__main__":
    main()
