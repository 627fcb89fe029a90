"""Which inputs to ask, and when to stop: students of the same ε by --ask and --stop, over seeds.

`distill` asks recorded teachers as it asks a server: a project of confident_gnmax, gnmax or
interactive_gnmax with real noise and the terms that `terrine project open` would give it. The pool
is all recorded inputs but the last HELD_OUT, on which accuracy is measured.

Data are read from TERRINE_SHARED_DATA, else from ../shared/data.

    python benchmarks/rounds.py [--data adult mnist] [--mechanisms confident_gnmax gnmax]
                                [--epsilons 0.5 1] [--asks representative uncertain disagreement]
                                [--stops never auto] [--method supervised] [--seeds 3] [--rounds 3]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import NDArray

from students import adult, mnist
from teachers import SHARED
from terrine_client import Client, Labels
from terrine_client.distill import Ask, Distilled, Stop, distill
from terrine_client.errors import BudgetExhausted
from terrine_models.data.arrays import Dataset
from terrine_models.students.methods import methods
from terrine_models.students.settings import Training
from terrine_protocol import Outcome
from terrine_server.planning.opening import choose
from terrine_server.privacy import VoteOutcome, build_mechanism
from terrine_server.privacy.budget.quoting import cap_order
from terrine_server.privacy.budget.rules import Rule
from terrine_server.privacy.budget.terms import Account

HELD_OUT, DELTA = 1000, 1e-5
AGREEMENT, SIGMA1, SIGMA2 = 0.7, 0.2, 0.15
"""Threshold and noise, as shares of the teachers."""
CERTAIN = 0.9
"""Probability from which interactive_gnmax confirms a student's own label."""


@dataclass(eq=False)
class Recorded:
    """A project whose teachers' votes are known: what `distill` needs of a client."""

    data: Dataset
    counts: NDArray[np.int64]
    mechanism: str
    epsilon: float
    account: Account = field(default_factory=Account)
    charges: int = 0

    def __post_init__(self) -> None:
        n, m = int(self.counts[0].sum()), self.counts.shape[1]
        spec: dict[str, Any] = {"name": self.mechanism}
        match self.mechanism:
            case "gnmax":
                spec |= {"sigma": SIGMA2 * n}
            case _:
                spec |= {"threshold": round(AGREEMENT * n), "sigma1": SIGMA1 * n}
                spec |= {"sigma2": SIGMA2 * n}
        if self.mechanism == "interactive_gnmax":
            spec |= {"threshold": round(0.4 * n), "confidence": CERTAIN}
        self.spec = spec
        opened = build_mechanism(spec, teachers=n, classes=m)
        cap = Rule("rdp", cap_order(self.epsilon, DELTA))
        self.quoted = choose(opened, self.epsilon, DELTA, cap_rule=cap)
        self.rows = {row.tobytes(): i for i, row in enumerate(self.data.inputs)}

    def project(self) -> Any:
        mechanism = SimpleNamespace(name=self.mechanism, model_dump=lambda **_: self.spec)
        spec = self.data.spec
        ensemble = SimpleNamespace(
            manifest_sha256="recorded",
            classes=list(self.data.classes),
            input=SimpleNamespace(shape=list(spec.shape), model_dump=spec.model_dump),
            teachers=int(self.counts[0].sum()),
            matches_prior=False,
            encoding=None,
        )
        opened = SimpleNamespace(isoformat=lambda: "recorded")
        return SimpleNamespace(
            name="recorded",
            ensemble=ensemble,
            mechanism=mechanism,
            opened_at=opened,
        )

    def budget(self) -> Any:
        terms = self.quoted.terms
        return SimpleNamespace(
            epsilon=self.epsilon,
            delta=DELTA,
            epsilon_spent=terms.epsilon_spent(self.account.spent),
            charges=self.charges,
            affordable=terms.affordable(self.account),
        )

    def label(self, x: NDArray[Any], beliefs: NDArray[np.float64] | None) -> Labels:
        rows = np.array([self.rows[row.tobytes()] for row in x])
        mechanism, terms = self.quoted.mechanism, self.quoted.terms
        if beliefs is None:
            released = mechanism.release(self.counts[rows])
        else:
            released = mechanism.release(self.counts[rows], beliefs)
        outcomes = np.full(len(rows), "refused", dtype="U16")
        labels = np.full(len(rows), -1)
        for i, code in enumerate(released.outcomes):
            if not terms.admits(self.account, opens=False):
                break
            outcome = VoteOutcome(code)
            self.account = self.account.plus(terms.price(outcome, opens=False))
            self.charges += 1
            outcomes[i], labels[i] = Outcome[outcome.name].value, released.labels[i]
        if (outcomes == "refused").all():
            raise BudgetExhausted.__new__(BudgetExhausted)
        none = np.zeros(len(rows), dtype=np.int64)
        names = np.full(len(rows), None, dtype=object)
        return Labels(outcomes, labels, names, none, none.astype(bool), self.budget())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", choices=["adult", "mnist"], default=["adult", "mnist"])
    parser.add_argument("--mechanisms", nargs="+", default=["confident_gnmax", "gnmax"])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[0.5, 1.0])
    several = [ask for ask in get_args(Ask) if ask != "auto"]
    parser.add_argument("--asks", nargs="+", choices=get_args(Ask), default=several)
    parser.add_argument("--stops", nargs="+", choices=get_args(Stop), default=["never"])
    parser.add_argument("--method", choices=methods(), default="supervised")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    home = Path(os.environ.get("TERRINE_SHARED_DATA", SHARED))
    for name in options.data:
        votes = home / {"adult": "adult_250_votes.npz", "mnist": "mnist_1000_votes.npz"}[name]
        if not votes.is_file():
            print(f"{name}: no recorded votes at {votes}")
            continue
        data = adult(home) if name == "adult" else mnist(home)
        with np.load(votes) as file:
            counts = file["counts"].astype(np.int64)
        for mechanism in options.mechanisms:
            for epsilon in options.epsilons:
                print(f"{name}, {mechanism}, ε = {epsilon:g}", flush=True)
                for ask in options.asks:
                    for stop in options.stops:
                        started, found = time.perf_counter(), []
                        for seed in range(options.seeds):
                            client = Recorded(data, counts, mechanism, epsilon)
                            training = Training(options.method, options.steps)
                            found.append(study(client, ask, stop, training, options.rounds, seed))
                        each = (time.perf_counter() - started) / options.seeds
                        report(data, f"--ask {ask} --stop {stop}", found, each)


def study(
    client: Recorded, ask: Ask, stop: Stop, training: Training, rounds: int, seed: int
) -> Distilled:
    x, labels = client.data.inputs, client.data.labels
    pool = np.unique(x[:-HELD_OUT], axis=0, return_index=True)[1]
    with tempfile.TemporaryDirectory() as folder:
        return distill(
            cast(Client, client),
            x[np.sort(pool)],
            Path(folder),
            held_out=(x[-HELD_OUT:], labels[-HELD_OUT:]),
            ask=ask,
            stop=stop,
            training=training,
            rounds=rounds,
            seed=seed,
        )


def report(data: Dataset, what: str, found: list[Distilled], seconds: float) -> None:
    """Print the means over seeds."""
    x, truth = data.inputs[:-HELD_OUT], data.labels[:-HELD_OUT]
    truth = truth[np.sort(np.unique(x, axis=0, return_index=True)[1])]

    def mean(values: list[float]) -> str:
        return f"{np.mean(values):.1%}"

    bought = [made.labels >= 0 for made in found]
    accuracy = [made.report.accuracy or 0.0 for made in found]
    spread = np.std(accuracy, ddof=1) if len(found) > 1 else float("nan")
    reinforced = [made.report.reinforced for made in found if made.report.reinforced is not None]
    print(
        f"  {what:36} {np.mean(accuracy):.2%} ± {spread:.2%}   "
        f"{np.mean([made.report.charges for made in found]):.0f} queries, "
        f"{np.mean([own.sum() for own in bought]):.0f} labels, "
        f"{mean([(m.labels == truth)[own].mean() for m, own in zip(found, bought, strict=True)])} "
        f"right; ε {np.mean([made.report.epsilon_spent for made in found]):.3f}, "
        f"{np.mean([len(made.report.rounds) for made in found]):.1f} rounds; "
        + (f"{mean(reinforced)} reinforced; " if reinforced else "")
        + f"{', '.join(made.report.choice.chosen for made in found)}; {seconds:.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
