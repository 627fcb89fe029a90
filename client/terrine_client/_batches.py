"""Label requests in batches: a generator that yields one call at a time and is sent its reply.

Both clients drive the same generator; one blocks on each reply, the other awaits it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from terrine_client._calls import Call
from terrine_client._labels import Labels
from terrine_client.errors import (
    BudgetExhausted,
    PayloadTooLarge,
    TerrineError,
    UnexpectedReply,
)
from terrine_protocol import Budget, LabelResponse, LabelResult, Outcome, UsedUp

Array = npt.NDArray[Any]
BatchPlan = Generator[Call[LabelResponse], LabelResponse, Labels]
Report = Callable[[Sequence[LabelResult], int], None]
"""Called with the results so far and the total number of inputs."""

_BATCH_BYTES = 16 * 2**20
_REFUSED = LabelResult(outcome=Outcome.REFUSED)


def label_batches(
    x: npt.ArrayLike,
    probabilities: npt.ArrayLike | None,
    batch_size: int,
    keep: Callable[[LabelResponse], None],
    report: Report,
    index: Any = None,
) -> BatchPlan:
    """Request labels for x [B, …] in batches, in order. `index`: see `Labels`.

    A batch that the server finds too large is halved. Once the budget is spent, the remaining
    inputs are still sent, because answers that were paid for earlier are free. Sending stops as
    soon as every charge of the project has been seen: the rest can only be refused.
    """
    inputs, beliefs = _checked(x, probabilities)
    row_bytes = sum(array.nbytes for array in (inputs, beliefs) if array is not None) / len(inputs)
    rows = max(1, min(batch_size, int(_BATCH_BYTES // max(1, row_bytes))))

    results: list[LabelResult] = []
    paid: set[int] = set()
    last: LabelResponse | None = None
    exhausted: BudgetExhausted | None = None
    spent = False
    while (start := len(results)) < len(inputs):
        batch = slice(start, min(start + rows, len(inputs)))
        size = batch.stop - start
        media_type, content = _encoded(inputs[batch], None if beliefs is None else beliefs[batch])
        try:
            reply = yield Call("POST", "/label", LabelResponse, content, media_type)
            if len(reply.results) != size:
                reason = f"{len(reply.results)} results for {size} inputs."
                raise UnexpectedReply(200, reason)
            _check_counts(reply, results)
        except TerrineError as error:
            if isinstance(error, PayloadTooLarge) and size > 1:
                rows = size // 2
                continue
            if not isinstance(error, BudgetExhausted):
                _hand_over(error, results, last, len(inputs), index)
                raise
            exhausted = error
            results += [_REFUSED] * size
        else:
            keep(reply)
            last = reply
            results += reply.results
            paid.update(result.charge for result in reply.results if result.charge is not None)
        report(results, len(inputs))
        spent = spent or any(result.outcome is Outcome.REFUSED for result in results[start:])
        if spent and last is not None and len(paid) >= _queries(last.budget):
            results += [_REFUSED] * (len(inputs) - len(results))
    report(results, len(inputs))
    if last is None:
        assert exhausted is not None  # noqa: S101 - every batch was either answered or refused
        raise exhausted
    return Labels.gather(results, last, index)


def used_up_batches(
    x: npt.ArrayLike, batch_size: int
) -> Generator[Call[UsedUp], UsedUp, npt.NDArray[np.float64]]:
    """Ask in batches, in order, how far people near each of x [B, …] are used up: float [B].

    A batch that the server finds too large is halved.
    """
    inputs, _ = _checked(x, None)
    rows = max(1, min(batch_size, int(_BATCH_BYTES // max(1, inputs.nbytes / len(inputs)))))
    found: list[float] = []
    while len(found) < len(inputs):
        batch = inputs[len(found) : len(found) + rows]
        media_type, content = _encoded(batch, None)
        try:
            reply = yield Call("POST", "/label/used-up", UsedUp, content, media_type)
        except PayloadTooLarge:
            if len(batch) == 1:
                raise
            rows = len(batch) // 2
            continue
        if len(reply.used_up) != len(batch):
            raise UnexpectedReply(200, f"{len(reply.used_up)} shares for {len(batch)} inputs.")
        found += reply.used_up
    return np.array(found)


def _check_counts(reply: LabelResponse, before: Sequence[LabelResult]) -> None:
    """Noisy counts come with every answer or with none, as many each time, and with their σ."""
    earlier = next((r for r in before if r.outcome is Outcome.ANSWERED), None)
    answered = [r for r in reply.results if r.outcome is Outcome.ANSWERED]
    compared = answered if earlier is None else [earlier, *answered]
    sizes = {None if result.counts is None else len(result.counts) for result in compared}
    if len(sizes) > 1 or (sizes - {None} and reply.noise_sigma is None):
        reason = "Some answers have other noisy counts than the rest, or no σ of their noise."
        raise UnexpectedReply(200, reason)


def _queries(account: Budget) -> int:
    """Number of entries that paid for queries; the others are publications."""
    return account.charges - len(account.publications)


def _hand_over(
    error: TerrineError,
    results: list[LabelResult],
    last: LabelResponse | None,
    total: int,
    index: Any,
) -> None:
    """Attach the answers received before the error to it."""
    if last is not None:
        error.partial = Labels.gather(results, last, index)
        error.add_note(
            f"Stopped after {len(results)} of {total} inputs; their answers are in `partial`. "
            "Sending the inputs again returns them at no cost."
        )


def _checked(x: npt.ArrayLike, probabilities: npt.ArrayLike | None) -> tuple[Array, Array | None]:
    """Check what does not depend on the ensemble; the server checks the rest."""
    inputs = _numeric(x, "Inputs")
    if inputs.ndim < 2 or not inputs.size:
        raise ValueError(
            f"Inputs have shape {inputs.shape}; expected [B, …], one row per input, at least one."
        )
    if probabilities is None:
        return inputs, None
    beliefs = _numeric(probabilities, "Probabilities")
    if beliefs.ndim != 2 or len(beliefs) != len(inputs):
        raise ValueError(
            f"Probabilities have shape {beliefs.shape}; expected [{len(inputs)}, classes]."
        )
    return inputs, beliefs


def _numeric(values: npt.ArrayLike, what: str) -> Array:
    array = np.asarray(values)
    if array.dtype.kind not in "uif":
        raise ValueError(f"{what} have dtype {array.dtype}; expected integers or floats.")
    if not np.isfinite(array).all():  # before the first batch is paid for
        raise ValueError(f"{what} contain NaN or infinity.")
    return array


def _encoded(inputs: Array, beliefs: Array | None) -> tuple[str, bytes]:
    """Media type and body of one batch, in NumPy's own format."""
    buffer = io.BytesIO()
    if beliefs is None:
        np.save(buffer, np.ascontiguousarray(inputs), allow_pickle=False)
        return "application/x-npy", buffer.getvalue()
    np.savez(buffer, inputs=inputs, probabilities=beliefs)
    return "application/x-npz", buffer.getvalue()
