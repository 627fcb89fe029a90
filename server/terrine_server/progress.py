"""Progress bars for the long jobs of commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from terrine_protocol.names import show_name


@contextmanager
def teachers_bar(console: Console, teachers: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar with the time left; yields `on_trained` for `train_ensemble`."""
    bar = _bar(console, "Training teachers", MofNCompleteColumn())
    task = bar.add_task("", total=teachers)

    def on_trained(done: int) -> None:
        bar.start()
        bar.update(task, completed=done)

    try:
        yield on_trained
    finally:
        bar.stop()


@contextmanager
def entries_bar(console: Console, name: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar over a ledger's entries, on terminals only; yields its callback."""
    shown = console.is_terminal
    with _bar(console, name, MofNCompleteColumn(), transient=True, disable=not shown) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def stages_bar(console: Console, *titles: str) -> Iterator[tuple[Callable[[int, int], None], ...]]:
    """Show a progress bar for each stage, on terminals only; yields their callbacks."""
    disable = not console.is_terminal
    with _bar(console, "{task.description}", transient=True, disable=disable) as bar:

        def callback(title: str) -> Callable[[int, int], None]:
            task = bar.add_task(escape(show_name(title)), total=None, visible=False)
            return lambda done, total: bar.update(task, completed=done, total=total, visible=True)

        yield tuple(map(callback, titles))


def _bar(
    console: Console,
    title: str,
    *columns: MofNCompleteColumn,
    transient: bool = False,
    disable: bool = False,
) -> Progress:
    return Progress(
        TextColumn(title),
        BarColumn(),
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=transient,
        disable=disable,
    )
