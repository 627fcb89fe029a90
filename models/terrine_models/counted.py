"""A student from noisy vote counts: shares fitted to public features, then a network on the clear.

    made = student_from_counts(x, counts, teachers=1000, sigma=500.0, inputs=spec, classes=names)

The counts of every public input are fitted at once (`shares.py`). On a table the regression itself
is the student; for two classes with the link that predicts held-out counts better
(`tanh_shares.py`). On images the rows whose class is clear become labels, and a network learns from
them and from all other inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .choice import Candidate, Choice, Made, candidates
from .closed_form import RidgeFit, RidgeStudents
from .learning import Training, train_student
from .shares import FittedShares, fit_shares, noisy_agreement
from .store import InputSpec, TableSchema
from .students import Student
from .tanh_shares import fit_two_classes, matched_bias

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

SCALES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Shares lie in [0, 1]; times one of these, their softmax is the probability that is returned."""
DOUBT = 3.0
"""Standard errors by which a network may agree less with the teachers than the regression does."""


def student_from_counts(
    x: NDArray[np.generic],
    counts: Ints,
    *,
    teachers: int,
    sigma: float,
    inputs: InputSpec,
    classes: tuple[str, ...],
    matches_prior: bool = False,
    encoding: TableSchema | None = None,
    training: Training | None = None,
    tell: Callable[[str], None] = lambda line: None,
    on_step: Callable[[int, int], None] = lambda done, steps: None,
) -> Made:
    """Train a student on inputs [N, *shape] and their noisy counts [N, m], all of them answered.

    `sigma`: of the noise, in votes. `matches_prior`: whether teachers for two classes match their
    prior on public rows (`architectures.match_priors`); then the student suits it too. With the
    method `auto`, a network on images and the regression on tables. A network that agrees less with
    the teachers than the regression does is not returned. Raises ValueError on fewer than two rows.
    """
    training = training or Training()
    if x.shape != (len(counts), *inputs.shape):
        raise ValueError(f"inputs have shape {x.shape}, expected {(len(counts), *inputs.shape)}")
    tell("Fitting the shares of the votes to public features …")
    everything = np.zeros(len(x), dtype=np.int64)
    ridges = RidgeStudents(x, everything, inputs=inputs, classes=classes, encoding=encoding)
    if len(inputs.shape) == 1 and len(classes) == 2:
        fitted, links = fit_two_classes(ridges.features, counts, teachers, sigma)
    else:
        fitted, links = fit_shares(ridges.features, counts, teachers, sigma), ""
    labels = fitted.clear_labels()
    regression, suited = _regression(ridges, fitted, counts, teachers, sigma, matches_prior)
    clear = int((labels >= 0).sum())
    # Of each row as it is predicted without its own counts: otherwise noise that was fitted counts.
    share = noisy_agreement(fitted.held_out.argmax(axis=1), counts, teachers)
    found = (
        f"{clear:,} of {len(x):,} rows are clear. About {share:.1%} of the teachers agree with the "
        "regression."
    )
    found = " ".join(filter(None, (found, links, suited)))

    def made(chosen: Candidate, why: str) -> Choice:
        return Choice(training.method, chosen, f"{found} {why}", (), clear, 0, 0)

    wanted = candidates(training.method, inputs, clear)[-1]
    if training.method == "auto" and wanted == "supervised":
        # On tables, and where hardly anything is clear, a network adds nothing to the regression.
        return Made(regression, made("ridge", "It is the student."))
    if wanted == "ridge":
        return Made(regression, made("ridge", "It is the student, as asked."))
    tell(f"Training {wanted} on {clear:,} clear rows …")
    network = train_student(
        x,
        labels,
        inputs=inputs,
        classes=classes,
        encoding=encoding,
        training=replace(training, method=wanted),
        on_step=on_step,
    )
    predicted = network.predict(x)
    own = noisy_agreement(predicted, counts, teachers)
    differ = int((predicted != fitted.winners).sum())
    doubt = DOUBT * sigma / teachers * np.sqrt(2 * differ) / len(x)
    fault = None
    if own < share - doubt:
        fault = f"With the {wanted} network only {own:.1%} do"
    elif missing := len(np.unique(fitted.winners)) - len(np.unique(predicted)):
        fault = f"The {wanted} network gave up {missing} of its classes"
    if fault is not None:
        return Made(regression, made("ridge", f"{fault}, so the regression is returned."))
    return Made(network, made(wanted, f"A network learned from the clear rows: {own:.1%}."))


def _regression(
    ridges: RidgeStudents,
    fitted: FittedShares,
    counts: Ints,
    teachers: int,
    sigma: float,
    matches_prior: bool,
) -> tuple[Student, str]:
    """Return the regression as a student, and what was done about the prior."""
    biases, suited = fitted.biases, ""
    if matches_prior and len(biases) == 2:
        leads = ridges.features @ (fitted.weights[:, 1] - fitted.weights[:, 0])
        prior = 0.5 + float((counts[:, 1] - counts[:, 0]).mean()) / (2 * teachers)
        error = sigma / teachers / np.sqrt(2 * len(counts))
        lead = matched_bias(leads, prior, error)
        suited = f"The mean share of {ridges.classes[1]} is {prior:.1%}"
        if lead is None:
            suited += ", too uncertain to be matched."
        else:
            biases = np.array([-lead / 2, lead / 2])
            chosen = float((leads + lead > 0).mean())
            suited += f", so the student chooses it for {chosen:.1%} of the rows."
    scale = 1.0 if fitted.link == "tanh" else _scale(fitted, counts / teachers)
    return ridges.student(fitted.weights, biases, RidgeFit(fitted.penalty, scale)), suited


def _scale(fitted: FittedShares, noisy: Floats) -> float:
    """Return the scale whose probabilities are nearest to the shares, which noise does not bias."""

    def missed(scale: float) -> float:
        odds = np.exp(scale * (fitted.shares - fitted.shares.max(axis=1, keepdims=True)))
        return float(((odds / odds.sum(axis=1, keepdims=True) - noisy) ** 2).mean())

    return min(SCALES, key=missed)
