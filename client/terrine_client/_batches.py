"""Label requests in batches, as plans that either client carries out, and their progress bar."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from terrine_client._calls import Call
from terrine_client._labels import Labels, plain_array
from terrine_client.errors import BudgetExhausted, ClientError, PayloadTooLarge, UnexpectedReply
from terrine_protocol import Budget, LabelResponse, LabelResult, Outcome, UsedUp

Array = npt.NDArray[Any]
BatchPlan = Generator[Call[LabelResponse], LabelResponse, Labels]
# Called with the results so far and the total number of inputs.
Report = Callable[[Sequence[LabelResult], int], None]

_MAX_BATCH_BYTES = 16 * 2**20
_REFUSED = LabelResult(outcome=Outcome.REFUSED)


def request_labels(
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
    inputs, probabilities = _check_inputs(x, probabilities)
    row_bytes = sum(array.nbytes for array in (inputs, probabilities) if array is not None) / len(
        inputs
    )
    rows = max(1, min(batch_size, int(_MAX_BATCH_BYTES // max(1, row_bytes))))

    results: list[LabelResult] = []
    paid: set[int] = set()
    last: LabelResponse | None = None
    exhausted: BudgetExhausted | None = None
    spent = False
    while (start := len(results)) < len(inputs):
        batch = slice(start, min(start + rows, len(inputs)))
        size = batch.stop - start
        media_type, content = _encode_batch(
            inputs[batch], None if probabilities is None else probabilities[batch]
        )
        try:
            reply = yield Call("POST", "/label", LabelResponse, content, media_type)
            if len(reply.results) != size:
                reason = f"{len(reply.results)} results for {size} inputs."
                raise UnexpectedReply(200, reason)
            _check_counts(reply, results)
        except ClientError as error:
            if isinstance(error, PayloadTooLarge) and size > 1:
                rows = size // 2
                continue
            if not isinstance(error, BudgetExhausted):
                _attach_partial(error, results, last, len(inputs), index)
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
        if spent and last is not None and len(paid) >= _count_query_charges(last.budget):
            results += [_REFUSED] * (len(inputs) - len(results))
    report(results, len(inputs))
    if last is None:
        assert exhausted is not None  # noqa: S101 - every batch was either answered or refused
        raise exhausted
    return Labels.gather(results, last, index)


def request_exhausted_shares(
    x: npt.ArrayLike, batch_size: int
) -> Generator[Call[UsedUp], UsedUp, npt.NDArray[np.float64]]:
    """Ask in batches, in order, how far people near each of x [B, …] are exhausted: float [B].

    A batch that the server finds too large is halved.
    """
    inputs, _ = _check_inputs(x, None)
    rows = max(1, min(batch_size, int(_MAX_BATCH_BYTES // max(1, inputs.nbytes / len(inputs)))))
    found: list[float] = []
    while len(found) < len(inputs):
        batch = inputs[len(found) : len(found) + rows]
        media_type, content = _encode_batch(batch, None)
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
    """Check that all answers have as many noisy counts, and their σ, or that none has any."""
    earlier = next((r for r in before if r.outcome is Outcome.ANSWERED), None)
    answered = [r for r in reply.results if r.outcome is Outcome.ANSWERED]
    compared = answered if earlier is None else [earlier, *answered]
    sizes = {None if result.counts is None else len(result.counts) for result in compared}
    if len(sizes) > 1 or (sizes - {None} and reply.noise_sigma is None):
        reason = "Some answers have other noisy counts than the rest, or no σ of their noise."
        raise UnexpectedReply(200, reason)


def _count_query_charges(account: Budget) -> int:
    """Number of entries that paid for queries; the others are publications."""
    return account.charges - len(account.publications)


def _attach_partial(
    error: ClientError,
    results: list[LabelResult],
    last: LabelResponse | None,
    total: int,
    index: Any,
) -> None:
    """Attach to the error the answers that were received before it."""
    if last is not None:
        error.partial = Labels.gather(results, last, index)
        error.add_note(
            f"Stopped after {len(results)} of {total} inputs; their answers are in `partial`. "
            "Sending the inputs again returns them at no cost."
        )


def _check_inputs(
    x: npt.ArrayLike, probabilities: npt.ArrayLike | None
) -> tuple[Array, Array | None]:
    """Check what does not depend on the ensemble; the server checks the rest."""
    inputs = _check_numeric(x, "Inputs")
    if inputs.ndim < 2 or not inputs.size:
        raise ValueError(
            f"Inputs have shape {inputs.shape}; expected [B, …], one row per input, at least one."
        )
    if probabilities is None:
        return inputs, None
    probabilities = _check_numeric(probabilities, "Probabilities")
    if probabilities.ndim != 2 or len(probabilities) != len(inputs):
        raise ValueError(
            f"Probabilities have shape {probabilities.shape}; expected [{len(inputs)}, classes]."
        )
    return inputs, probabilities


def _check_numeric(values: npt.ArrayLike, what: str) -> Array:
    array = plain_array(values)
    if array.dtype.kind not in "uif":
        raise ValueError(f"{what} have dtype {array.dtype}; expected integers or floats.")
    if not np.isfinite(array).all():  # before the first batch is paid for
        raise ValueError(f"{what} contain NaN or infinity.")
    return array


def _encode_batch(inputs: Array, probabilities: Array | None) -> tuple[str, bytes]:
    """Return the media type and the body of one batch, in NumPy's own format."""
    buffer = io.BytesIO()
    if probabilities is None:
        np.save(buffer, np.ascontiguousarray(inputs), allow_pickle=False)
        return "application/x-npy", buffer.getvalue()
    np.savez(buffer, inputs=inputs, probabilities=probabilities)
    return "application/x-npz", buffer.getvalue()


@contextmanager
def show_progress(shown: bool) -> Iterator[Report]:
    """Yield a report that draws progress and the count of each outcome on standard error."""
    if not shown:
        yield lambda results, total: None
        return

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("labels"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[tally]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("labels", total=None, tally="")

        def report(results: Sequence[LabelResult], total: int) -> None:
            counts = Counter(result.outcome for result in results)
            tally = ", ".join(f"{counts[o]} {o}" for o in Outcome if counts[o])
            progress.update(task, total=total, completed=len(results), tally=tally)

        yield report
