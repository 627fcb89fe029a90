"""The progress bar of a long `label` call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from terrine_client._batches import Report
from terrine_protocol import LabelResult, Outcome


@contextmanager
def progress_bar(shown: bool) -> Iterator[Report]:
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
