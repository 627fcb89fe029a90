"""What noisy counts are worth beside bought labels, at the same ε: accuracy of fitted shares.

Votes of 250, 1,000 or 2,000 teachers on 10,000 MNIST test images (recorded; read from
TERRINE_SHARED_DATA, else from ../shared/data beside the repository), with fresh noise. For each ε
and seed: the regression of `terrine_models.students.shares` on public features, and the labels that
it calls clear; beside them what confident_gnmax answers for the same ε, at its best parameters of
`planning.opening` among those of `THRESHOLDS`. The accuracy of the plurality is the teachers' own.

    python benchmarks/noisy_votes.py [--teachers 1000] [--seeds 3] [--student]

`--student` also trains the student that is returned, which takes minutes for each row.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from reference.data import SHARED, recorded
from terrine_models.data.arrays import load_idx
from terrine_models.features.maps import PublicData, public_features
from terrine_models.students.answers import Answers
from terrine_models.students.selection import choose
from terrine_models.students.shares import fit_shares
from terrine_models.students.task import Task
from terrine_server.planning.counts import sigma_for_rows
from terrine_server.planning.forecast import Votes, forecast
from terrine_server.planning.opening import quick_quote
from terrine_server.privacy import ParameterError, VoteOutcome
from terrine_server.privacy.mechanisms.confident_gnmax import ConfidentGNMax

DELTA, CLASSES, WIDTH = 1e-5, 10, 150
BUDGETS = (0.1, 0.2, 0.3, 0.6, 1.0)
THRESHOLDS = (0.5, 0.6, 0.7, 0.8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--teachers", type=int, default=1000, choices=[250, 1000, 2000])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--student", action="store_true")
    options = parser.parse_args()
    n = options.teachers
    counts, truth = recorded(f"mnist_{n}")
    (images,) = (SHARED / "mnist").glob("t10k-images*")
    data = load_idx(images)
    x, spec = data.inputs, data.spec
    started = time.perf_counter()
    public = public_features(spec, PublicData.declare("test images", x), WIDTH)
    features = public(torch.tensor(x)).double().numpy()
    took = time.perf_counter() - started
    print(f"{n:,} teachers; plurality right on {(counts.argmax(1) == truth).mean():.2%}. ", end="")
    print(f"Features: {took:.1f} s.")
    print("   ε  seed   σ/n   fitted right   clear rows   right    fit    bought labels, right")
    for epsilon in BUDGETS:
        sigma = sigma_for_rows(len(x), n, CLASSES, epsilon, DELTA)
        bought = labels_bought(counts, truth, n, epsilon)
        for seed in range(options.seeds):
            noise = np.random.default_rng(seed).normal(scale=sigma, size=counts.shape)
            noisy = counts + np.rint(noise).astype(np.int64)
            started = time.perf_counter()
            fitted = fit_shares(features, noisy / n, sigma / n)
            took = time.perf_counter() - started
            labels = fitted.clear_labels()
            clear = labels >= 0
            share = (fitted.winners == truth).mean()
            print(
                f"{epsilon:4g}  {seed:4}  {sigma / n:4.2f}   {share:12.2%}"
                f"   {clear.sum():10,}  {(labels == truth)[clear].mean():6.2%}  {took:4.1f} s   "
                f"{bought}",
                flush=True,
            )
            if options.student:
                task = Task(x, spec, tuple(map(str, range(CLASSES))), seed=seed)
                made = choose(task, Answers.of_counts(noisy, teachers=n, sigma=sigma))
                right = (made.student.predict(x) == truth).mean()
                print(f"      student ({made.choice.chosen}): {right:.2%}", flush=True)


def labels_bought(counts: np.ndarray, truth: np.ndarray, n: int, epsilon: float) -> str:
    """Return how many labels confident_gnmax sells for ε, and how many of them are right."""
    votes, best = Votes.observed(counts, truth, teachers=n), (0.0, 0.0)
    for share in THRESHOLDS:
        for spread in (0.15, 0.2):
            mechanism = ConfidentGNMax(n, CLASSES, round(share * n), 0.2 * n, spread * n)
            expected = forecast(mechanism, votes)
            rate = expected.shares[VoteOutcome.ANSWERED]
            try:
                quoted = quick_quote(mechanism, epsilon, DELTA, max(rate, 1e-6))
            except ParameterError:
                continue
            if expected.accuracy >= 0.97:
                best = max(best, (quoted.answers, expected.accuracy))
    return f"{best[0]:,.0f}, {best[1]:.2%}"


if __name__ == "__main__":
    main()
