"""What commands say of private rows before they use them: on the owner's console, nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape

from terrine_server.cli.console import console

if TYPE_CHECKING:
    from terrine_models.data.arrays import Dataset
    from terrine_models.features.maps import PublicData
    from terrine_models.teachers.manifests import TeacherSettings
    from terrine_models.teachers.preview import Preview

LISTED = 5
"""Classes that are named."""
OFTEN = 0.2
"""Share of the teachers that may lack a class."""
AGREE, HALF = 0.8, 0.5
"""Where fewer than half of the inputs find 80 % of the teachers agreed, most answers are dear."""


def show(data: Dataset, teachers: int, seed: int) -> Preview:
    """Print what each teacher will see, and what stands against their agreement."""
    from terrine_models.teachers.preview import Preview

    found = Preview.of(data, teachers, seed)
    people = "" if found.people is None else f" of {found.people:,} people"
    smallest, middle, largest = found.rows
    fewest, usual, most = found.classes
    classes = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    _say(
        f"[bold]Private, for your eyes only:[/] {found.records:,} records{people} for "
        f"{teachers:,} teachers. The smallest shard has {smallest:,} records, the median "
        f"{middle:,}, the largest {largest:,}. A teacher sees {classes} "
        f"of {len(data.classes)} classes, {usual} in the middle."
    )
    rare = {name: n for name, n in found.lacking.items() if n > OFTEN * teachers}
    if rare:
        named = [f"{escape(name)} ({n:,} teachers)" for name, n in list(rare.items())[:LISTED]]
        more = f" and {len(rare) - LISTED} more" if len(rare) > LISTED else ""
        _warn(
            f"Many teachers have no record of a class, and such a teacher never votes for it: "
            f"{', '.join(named)}{more}. Train fewer teachers, or merge rare classes."
        )
    return found


def private_rows(public: PublicData, private: Dataset) -> str:
    """Say how many public rows are private ones as well. Raises DataError if these are many.

    Nothing is changed by it, and it is stored nowhere: which rows are private may not be told.
    """
    shared = public.count_private_rows(private)
    return (
        f"Private, for your eyes only: {shared:,} of {len(public.inputs):,} public rows are rows "
        "of private records as well. Nothing is left out or stored because of that: what a public "
        "row says of somebody is not protected."
    )


def show_agreement(public: Dataset, found: Preview, config: TeacherSettings, seed: int) -> None:
    """Train stand-ins on labelled public records, and print how far they agree."""
    from terrine_models.teachers.preview import stand_in

    rows = max(1, found.rows[1])
    agreement = stand_in(public, rows, config, seed)
    if agreement is None:
        _say(
            f"How far teachers will agree is not known: {len(public):,} public records are too few "
            f"for stand-ins of {rows:,} each."
        )
        return
    inside = [level for level in agreement.levels if level.agreement >= AGREE]
    share = sum(level.inputs for level in inside) / agreement.inputs
    _say(
        f"From public records alone: {agreement.teachers} stand-ins of {rows:,} records each are "
        f"right on {agreement.mean_teacher:.1%} of others, most of them on "
        f"{agreement.plurality:.1%} (the largest class: {agreement.majority:.1%}); "
        f"{AGREE:.0%} of them agree on {share:.1%}."
    )
    if share < HALF:
        _warn(
            "Teachers of so few records seldom agree: most queries will be abstained, or answered "
            "with noise that outweighs the votes. Train fewer teachers."
        )


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False)


def _warn(text: str) -> None:
    console.print(f"[yellow]Warning:[/] {text}", soft_wrap=True, highlight=False)
