"""How many queries data-dependent accounting pays for, beside the worst case at the same (ε, δ).

The real ledger on a temporary SQLite database and the real publication of figures, with refusals.
The votes are of 1,000 teachers on 10,000 MNIST test images (recorded; read from
TERRINE_SHARED_DATA, else from ../shared/data beside the repository). Publication and schedule are
planned on synthetic levels of consensus, before any vote is seen. Every figure has fresh noise, so
several runs are shown.

    python benchmarks/data_dependent.py
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datasets import recorded
from reference.sensitivity import Charged, secret_spend
from terrine_protocol import EnsembleFacts, InputSpec
from terrine_server.errors import BudgetExhausted
from terrine_server.ledger import Ledger, NewProject, ProjectRecord, Proposal, connect, upgrade
from terrine_server.ledger.accounts import meter_of
from terrine_server.planning.opening import Consensus, Votes
from terrine_server.planning.plan import choose_schedule
from terrine_server.privacy import GaussianNoisyMax, VoteOutcome, build_mechanism, cap, quote
from terrine_server.privacy.published import Meter

EXPECTED = (Consensus(0.95, 8), Consensus(0.7, 1.5), Consensus(0.45, 0.5))
BATCH = 64
DELTA = 1e-6
CASES = [
    ({"name": "gnmax", "sigma": 40.0}, 2.0, 10.0),
    ({"name": "gnmax", "sigma": 80.0}, 2.0, 10.0),
    ({"name": "gnmax", "sigma": 80.0}, 1.0, 20.0),
    ({"name": "confident_gnmax", "threshold": 600, "sigma1": 150.0, "sigma2": 60.0}, 2.0, 10.0),
]
"""Mechanism, ε, and the Rényi order of the ensemble's cap."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="projects of each kind")
    runs = parser.parse_args().runs
    votes = recorded("mnist_1000")[0]
    compare_tally(votes[:2000])
    print("Queries paid for until refused, for the same (ε, δ); votes of 1,000 teachers.")
    for spec, epsilon, order in CASES:
        terms = ", ".join(f"{name} {value:g}" for name, value in spec.items() if name != "name")
        print(f"\n{spec['name']} ({terms}), ε = {epsilon:g}, δ = {DELTA:g}, order {order:g}")
        mechanism = build_mechanism(spec, teachers=1000, classes=10)
        expected = Votes.synthetic(EXPECTED, teachers=1000, classes=10)
        publishing = choose_schedule(spec, expected, epsilon=epsilon, delta=DELTA, order=order)
        with tempfile.TemporaryDirectory() as directory:
            ledger = new_ledger(Path(directory), order)
            rule = ledger.ensemble("mnist").population.rule
            worst_case = quote(mechanism, epsilon, DELTA, cap_rule=rule)
            plain = ask(
                ledger, ledger.open_project(NewProject("plain", "mnist", spec, worst_case)), votes
            )
            published = quote(mechanism, epsilon, DELTA, cap_rule=rule, publishing=publishing)
            reached = [
                ask(
                    ledger,
                    ledger.open_project(NewProject(f"run-{run}", "mnist", spec, published)),
                    votes,
                )
                for run in range(runs)
            ]
        mean = np.mean(reached)
        print(f"  worst case (Gaussian DP)                  {plain:6,}")
        print(f"  data-dependent, with published bounds     {mean:6,.0f}   runs: {reached}")
        print(f"  gain {mean / plain - 1:+.0%}, minimum {min(reached) / plain - 1:+.0%}")


def compare_tally(votes: NDArray[np.int64]) -> None:
    """Compare the cost from a tally with the analysis of every query."""
    event, order, beta = GaussianNoisyMax(40.0), 6.0, 0.025
    exact = secret_spend([Charged(event, votes)], teachers=1000, order=order, beta=beta)
    meter = Meter({VoteOutcome.ANSWERED: event}, teachers=1000, classes=10, order=order)
    tally = np.zeros(meter.size, dtype=np.int64)
    np.add.at(tally, np.array(meter.places(VoteOutcome.ANSWERED, votes)), 1)
    kept = meter.spend(tally, beta)
    print(
        f"A tally of {len(votes):,} queries (sigma 40, order {order:g}, beta {beta:g}): cost "
        f"{kept.cost / exact.cost - 1:+.2%}, smooth sensitivity "
        f"{kept.smooth_sensitivity / exact.smooth_sensitivity - 1:+.0%}, compared with every "
        "query's own votes"
    )


def new_ledger(directory: Path, order: float) -> Ledger:
    engine = connect(f"sqlite:///{directory / 'terrine.sqlite'}")
    upgrade(engine, b"k" * 32)
    ledger = Ledger(engine, b"k" * 32)
    facts = EnsembleFacts(
        kind="networks",
        input=InputSpec(shape=(28, 28), dtype="uint8", low=0, high=255),
        classes=[str(digit) for digit in range(10)],
        teachers=1000,
    )
    limit = cap(90.0, 1.5e-5, order)
    ledger.register_ensemble("mnist", "ensembles/mnist", "ab" * 32, facts, 60_000, limit)
    return ledger


def ask(ledger: Ledger, project: ProjectRecord, votes: NDArray[np.int64]) -> int:
    """Query image after image until the project refuses. Returns how many were paid for."""
    mechanism = build_mechanism(dict(project.mechanism), teachers=1000, classes=10)
    meter = None if project.terms.schedule is None else meter_of(project)
    paid = 0
    for start in range(0, len(votes), BATCH):
        rows = votes[start : start + BATCH]
        released = mechanism.release(rows, None)
        batch = []
        for row, (outcome, label) in enumerate(
            zip(released.outcomes, released.labels, strict=True)
        ):
            digest = hashlib.sha256(f"{start + row}".encode()).digest()
            places = meter.places(outcome, rows[row : row + 1])[0] if meter else ()
            counted = None if label < 0 else int(label)
            batch.append(Proposal(digest, digest, outcome, counted, places))
        try:
            receipt = ledger.charge(project.id, batch)
        except BudgetExhausted:
            return paid
        paid += sum(result.seq is not None for result in receipt.results)
    return paid


if __name__ == "__main__":
    started = time.perf_counter()
    main()
    print(f"\n{time.perf_counter() - started:.0f} s")
