"""`terrine plan`: what a student will be, or how many answers are right, before it is spent."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from terrine_server.cli import arrays, tables, ways
from terrine_server.cli.console import as_json, fail, print_json, with_json
from terrine_server.cli.evaluate import ensemble_directory
from terrine_server.cli.plan_report import document, show, show_all, show_lasting, stand_ins
from terrine_server.cli.specs import SPEC, parse_spec
from terrine_server.cli.votes import VoteSource, check_origin, load_votes

if TYPE_CHECKING:
    from terrine_server.planning.forecast import Votes
    from terrine_server.planning.plan import Plan

ROWS, CLASSES = 10_000, 10
"""Public rows that are asked, and classes, if nothing is said."""


@with_json
def plan(
    mechanism: Annotated[
        str | None,
        typer.Argument(
            metavar=f"[{SPEC}]",
            help="A mechanism of `terrine mechanisms`; parameters that are not stated are "
            "searched for. Without one, the best plans of all are compared.",
        ),
    ] = None,
    public: Annotated[
        Path | None,
        typer.Option(
            metavar="POOL",
            help="For a model: public data, on all of which students will ask. With labels, they "
            "foretell the student of each way.",
        ),
    ] = None,
    units: Annotated[
        int | None,
        typer.Option(min=1, help="With --public: private records, or people, that there are."),
    ] = None,
    label: ways.Label = None,
    bins: ways.Bins = None,
    group: ways.Group = None,
    columns: ways.Columns = None,
    classes: Annotated[
        str | None,
        typer.Option(
            metavar="N|A,B,…", help="Number of classes, or their names. Default: 10; --label's."
        ),
    ] = None,
    images: arrays.Images = None,
    epsilon: Annotated[float, typer.Option(help="ε that may be spent.")] = 1.0,
    delta: Annotated[
        float | None,
        typer.Option(help="δ; below 1 / training records. Default: 1e-5; with --units, by these."),
    ] = None,
    teachers: Annotated[
        str | None,
        typer.Option(metavar="N,…", help="Number of teachers; several to compare ensembles."),
    ] = None,
    consensus: Annotated[
        str,
        typer.Option(
            metavar="C[:SHARE],…",
            help="Share of teachers that agree; several levels with their shares of the queries.",
        ),
    ] = "0.9",
    votes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="An .npz with counts [B, m] and optional labels [B], instead of --consensus.",
        ),
    ] = None,
    votes_are: Annotated[
        VoteSource | None, typer.Option(help="What the teachers of --votes were trained on.")
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="For noisy_votes and neighbours: public rows that are all asked once. Default: "
            "10,000.",
        ),
    ] = None,
    ensemble: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="For neighbours: the ensemble whose public rows foretell how long people last.",
        ),
    ] = None,
) -> None:
    """Plan a project: what will a student be, or how many answers are right, for which ε?

    Nothing is spent and no teacher votes. For a model, give --public and --units: students of
    public stand-ins are simulated. Of labels that are used one by one, right answers count: votes
    are generated from levels of consensus, or read from a file and were cast by teachers trained on
    public or synthetic data.

    [bold]Examples[/bold]

      terrine plan --public census-sample.csv --label income --units 32000

      terrine plan --teachers 1000 --epsilon 1 --consensus 0.95:6,0.8:3,0.5:1

      terrine plan confident_gnmax:sigma2=120 --teachers 250,1000 --epsilon 2

      terrine plan gnmax --votes public.npz --votes-are public --epsilon 2

      terrine plan neighbours --ensemble digits --rows 8000 --epsilon 0.3
    """
    if public is not None:
        if units is None:
            fail("How many private records, or people, are there? Say it with --units.")
        if mechanism or delta or teachers or votes or votes_are or rows or ensemble:
            fail(
                "--public takes what `terrine quickstart` takes: no MECHANISM and no number but "
                "--units and --epsilon, and for labels one by one --consensus."
            )
        given = ways.DataOptions(public, label, group, columns, classes, images, bins=bins)
        _for_a_model(given, units, epsilon, consensus)
        return
    if units or label or bins or group or columns or images:
        fail("--units, --label, --bins, --group, --columns and --images go with --public.")
    delta = 1e-5 if delta is None else delta
    if mechanism == "neighbours":
        _neighbours(ensemble, rows or ROWS, epsilon, delta)
        return
    if ensemble is not None:
        fail("--ensemble goes with neighbours alone. Other plans take --teachers.")
    if rows is not None and not (mechanism or "").startswith("noisy_votes"):
        fail("--rows goes with noisy_votes or neighbours. For labels one by one leave it out.")
    ensembles = _ensembles(_sizes(teachers), _how_many(classes), consensus, votes, votes_are)
    origin = "assumed" if votes_are is None else votes_are.value
    if mechanism is None:
        _compared(ensembles, epsilon, delta, origin)
        return
    rows = rows or ROWS
    found = _one(mechanism, ensembles, epsilon, delta, rows)
    if as_json():
        print_json(document(found, origin))
    else:
        show(found, rows)


def _for_a_model(given: ways.DataOptions, units: int, epsilon: float, consensus: str) -> None:
    """Rank the ways to ask by what students will be; without public labels, mechanisms."""
    from terrine_models.data.arrays import DataError, distinct
    from terrine_models.features.maps import PublicData
    from terrine_models.tables.loading import is_table
    from terrine_server.planning.first_project import Setting, delta_for, teachers_for
    from terrine_server.planning.forecast import Consensus, Votes

    if not given.public.exists():
        fail(f"There is no {given.public}.")
    note = tables.note_aside if as_json() else tables.note
    schema = given.proposed(note).schema if is_table(given.public) else None
    try:
        if schema is not None:
            data = tables.labelled_rows(given.public, schema, note)
        else:
            given.check_no_table()
            data, _, _ = arrays.load(
                given.public, arrays.Arrays(given.public, given.classes, given.images)
            )
    except DataError as error:
        note(
            f"What students will be cannot be foreseen without public labels: {error} Below, "
            "mechanisms are ranked by right answers, if teachers agree as --consensus says."
        )
        if schema is None:
            many = _how_many(given.classes)
        else:
            many = sum(len(each.values or ()) for each in schema.columns if each.role == "label")
        levels, teachers = Consensus.parse(consensus), teachers_for(units, many)
        known = Votes.synthetic(levels, teachers=teachers, classes=many)
        _compared([known], epsilon, delta_for(units), "assumed")
        return
    setting = Setting.of(
        units=units,
        rows=int(distinct(data.inputs).max()) + 1,
        classes=len(data.classes),
        epsilon=epsilon,
    )
    pool = PublicData.declare(given.public.name, data.inputs, labels=data.labels)
    ways.show_plan(ways.chosen(setting, pool, data, data), data, given)


def _compared(ensembles: list[Votes], epsilon: float, delta: float, origin: str) -> None:
    """Rank mechanisms by right answers, for labels that are used one by one."""
    from terrine_server.planning.comparison import compare

    plans = compare(ensembles, epsilon=epsilon, delta=delta)
    if as_json():
        print_json([document(each, origin) for each in plans])
    else:
        show_all(plans)


def _ensembles(
    sizes: list[int], classes: int, consensus: str, votes: Path | None, votes_are: VoteSource | None
) -> list[Votes]:
    from terrine_server.planning.forecast import Consensus, Votes

    if votes is not None:
        check_origin(votes_are, "--votes-are")
        return [load_votes(votes, sizes)]
    if votes_are is not None:
        fail("--votes-are describes the votes of --votes, but there is no --votes.")
    if not sizes:
        fail("Say how many teachers there are, such as --teachers 1000.")
    levels = Consensus.parse(consensus)
    return [Votes.synthetic(levels, teachers=n, classes=classes) for n in sizes]


def _one(text: str, ensembles: list[Votes], epsilon: float, delta: float, rows: int) -> Plan:
    """Return the plan of one mechanism, with the parameters that are stated."""
    from terrine_server.planning.comparison import plan_counts
    from terrine_server.planning.opening import EXPECTED_STUDENT
    from terrine_server.planning.plan import plan as make_plan

    name, stated = parse_spec("MECHANISM", text)
    if wrong := [each for each, value in stated.items() if isinstance(value, bool | str)]:
        fail(f"MECHANISM: {', '.join(wrong)} must be a number.")
    if name == "noisy_votes" and not stated:
        return plan_counts(ensembles, epsilon=epsilon, delta=delta, rows=rows)
    if name == "interactive_gnmax":
        ensembles = [each.with_student(EXPECTED_STUDENT) for each in ensembles]
    values = {parameter: [float(value)] for parameter, value in stated.items()}
    return make_plan(name, ensembles, epsilon=epsilon, delta=delta, grid=lambda _: values)


def _neighbours(name: str | None, rows: int, epsilon: float, delta: float) -> None:
    """Plan for the units of an ensemble, by its public rows alone."""
    from terrine_server.owner.stand_in_units import neighbours_of
    from terrine_server.planning.neighbour_plan import plan_neighbours

    if name is None:
        fail("Which people are near depends on the data: name their ensemble with --ensemble.")
    manifest, found = neighbours_of(ensemble_directory(name))
    planned = plan_neighbours(
        found.spent,
        units=manifest.units,
        near=max(1, round(found.near)),
        queries=rows,
        epsilon=epsilon,
        delta=delta,
    )
    if as_json():
        print_json(asdict(planned))
    else:
        show_lasting(planned, name, stand_ins(manifest, found), epsilon, delta)


def _how_many(classes: str | None) -> int:
    names = arrays.class_names(classes)
    return CLASSES if names is None else len(names)


def _sizes(text: str | None) -> list[int]:
    try:
        return [int(part) for part in text.split(",")] if text else []
    except ValueError:
        fail(f"--teachers takes whole numbers, such as 250 or 250,1000; not {text!r}.")
