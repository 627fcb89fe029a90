"""What `terrine quickstart` and `terrine plan` say of the ways to ask the records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from terrine_server.cli.arrays import class_names
from terrine_server.cli.console import as_json, command_text, console, fail, print_json
from terrine_server.cli.tables import edges, split
from terrine_server.progress import stages_bar

if TYPE_CHECKING:
    from terrine_models.data.arrays import Dataset
    from terrine_models.features.maps import PublicData
    from terrine_models.tables.roles import SchemaProposal
    from terrine_server.owner.ways import ForecastChoice, ForecastOption, StudentForecast
    from terrine_server.planning.first_project import FirstProject, Setting

Note = Callable[[str], None]


@dataclass(frozen=True)
class DataOptions:
    """What the command line says about the data."""

    public: Path
    label: str | None
    group: str | None
    columns: str | None
    classes: str | None
    images: str | None
    ignore: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    bins: str | None = None

    @property
    def table(self) -> list[object]:
        """The options that say what is in a table."""
        named = {"--label": self.label, "--group": self.group, "--columns": self.columns}
        named["--bins"] = self.bins
        ignored = [word for name in self.ignore for word in ("--ignore", name)]
        kept = [word for name in self.keep for word in ("--keep", name)]
        return [*_options(named), *ignored, *kept]

    @property
    def formats(self) -> list[object]:
        """The options that say how arrays and pictures are read."""
        return _options({"--classes": self.classes, "--images": self.images})

    def proposed(self, note: Note) -> SchemaProposal:
        """Propose a schema for a table."""
        from terrine_models.tables.roles import propose_schema

        if self.images:
            fail("--images is for folders of pictures; a table has a schema.")
        if self.label is None:
            fail("Which column is to be predicted? Name it with --label.")
        with stages_bar(console, f"Reading {self.public.name}") as (progress,):
            return propose_schema(
                self.public,
                label=self.label,
                classes=class_names(self.classes),
                bins=edges(self.bins),
                group=self.group,
                columns=split(self.columns),
                ignore=self.ignore,
                keep=self.keep,
                note=note,
                progress=progress,
            )

    def check_no_table(self) -> None:
        """Refuse what is for tables alone."""
        if self.table:
            fail("--label, --bins, --group, --columns, --ignore and --keep are for tables.")


Label = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Of a table: the column to predict.")
]
Bins = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,…",
        help="Of a table: cut the numbers of the column to predict into classes, at these edges, "
        "all of it public: 100,250 makes three.",
    ),
]
Group = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", help="Of a table: the column that names whose a row is, if several."
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(metavar="A,B,…", help="Names of the columns of CSV files without a header."),
]


def _options(given: dict[str, str | None]) -> list[object]:
    return [word for option, value in given.items() if value for word in (option, value)]


def chosen(
    setting: Setting, pool: PublicData, labelled: Dataset | None, like: Dataset
) -> ForecastChoice:
    """Choose how records are asked, from public rows. `like`: data with the private ones' kind."""
    import numpy as np

    from terrine_models.data.arrays import Dataset
    from terrine_server.owner.ways import choose_way

    sample = labelled
    if sample is None:
        unknown = np.zeros(len(pool.inputs), np.int64)
        sample = Dataset(pool.inputs, unknown, like.classes, like.spec)
    with console.status("Simulating each way on public rows"):
        return choose_way(
            setting, sample, pool, labelled=labelled is not None, people=like.groups is not None
        )


def way(first: FirstProject, unit: str) -> str:
    """Say how the records are asked, which are those of so many `unit`, in the plural."""
    noise = f"Random noise (σ = {first.sigma:g}) is added to the number of votes of each class."
    if first.neighbours is not None:
        return (
            f"neighbours: the {unit} most similar to the row that is asked about vote, some "
            f"{first.neighbours.near:,} of them. {noise} Each has a budget of its own, and stops "
            f"voting when that is spent: {first.neighbours.retired:.0%} of them by the end."
        )
    teachers = (
        f"{first.teachers:,} teachers: models, each trained on {first.units // first.teachers} or "
        f"more {unit} that no other is trained on."
    )
    if first.confident is not None:
        threshold = int(str(first.confident["threshold"])) / first.teachers
        return (
            f"{teachers} Where about {threshold:.0%} of them agree, by a count with noise, the "
            "answer is their class, and else nothing."
        )
    return f"{teachers} {noise}"


def why(made: ForecastChoice) -> str:
    """Say why it is this way and no other."""
    _, *others = made.ways
    if made.forecast is None:
        return f"Its votes have less noise than those of {_and(others)}; no way could be tried out."
    said = []
    if worse := [each for each in others if each.worse]:
        said.append(f"clearly better than those of {_and(worse)}")
    if alike := [each for each in others if not each.worse]:
        said.append(f"about as good as those of {_and(alike)}")
    measure = "balanced accuracy" if made.forecast.auc is None else "AUC"
    return f"In trials on public rows its students were {', and '.join(said)} (by {measure})."


def buys(made: ForecastChoice, labelled: Dataset | None) -> str:
    """Say what is certain, and what else the project should buy."""
    import numpy as np

    from terrine_server.owner.ways import DRAWS

    certain, found = f"for certain, {bought(made.first)}", made.forecast
    if labelled is None:
        return (
            f"{certain}. How good a student becomes cannot be said: that would take labels of "
            "public rows. A trial on private ones would tell something about them."
        )
    if found is None:
        return (
            f"{certain}. How good a student becomes cannot be said: {len(labelled):,} labelled "
            "public rows are too few for a trial."
        )
    said = (
        f"{certain}. In {DRAWS} trials on public rows, of which {found.stand_ins:,} stood in for "
        f"private ones, students were right on {_percent(found.accuracy)}, balanced accuracy "
        f"{_percent(found.balanced_accuracy)} (the average over the classes; a guess has "
        f"{found.chance:.0%}). Expect the same if the private rows are like the public ones."
    )
    if found.useless:
        ranked = ""
        if found.auc is not None and found.above_chance:
            ranked = f" They rank rows with an AUC of {found.auc[0]:.2f} to {found.auc[1]:.2f}."
        return f"{said} That is next to nothing: more records or a larger ε would help.{ranked}"
    largest = float(np.bincount(labelled.labels).max() / len(labelled))
    if len(labelled.classes) == 2 and found.accuracy[1] < largest:
        said += (
            f" Always predicting the larger class would be right more often ({largest:.1%}), but "
            "would never find the other. Who prefers accuracy trains with --threshold accuracy."
        )
    return said


def check_above_chance(made: ForecastChoice, schema: Path | None, *, anyway: bool) -> None:
    """Refuse a project whose simulated students are no better than a guess."""
    found, first = made.forecast, made.first
    if anyway or found is None or found.above_chance:
        return
    said = (
        "Stopped before anything was made of the records, or spent: the simulated students are "
        f"no better than chance, by whatever way the records are asked. Those of the best, "
        f"{_named(first)}, have a balanced accuracy of {_percent(found.balanced_accuracy)}; a "
        f"guess has {found.chance:.1%}."
    )
    if found.auc is not None:
        said += f" Their AUC is {found.auc[0]:.2f} to {found.auc[1]:.2f}; that of a guess is 0.50."
    if made.truth is not None and not made.truth.above_chance:
        said += (
            " Even the true labels of the same public rows teach no more: what is known of a row "
            "may not tell its class."
        )
    fewer = "inputs of fewer features"
    if schema is not None:
        fewer = f'fewer columns (those that tell little get the role "ignored" in {schema})'
    said += (
        f" What would help: more people than these {first.units:,}; a larger ε than "
        f"{first.epsilon:g}; {fewer}; or teachers that you have already (`terrine ensemble "
        "import`)."
    )
    fail(f"{said} To open it all the same, add --anyway.")


def bought(first: FirstProject) -> str:
    """Say what a project buys, whatever teachers say."""
    from terrine_server.privacy import Account

    if first.confident is None:
        said = f"noisy votes on all {first.rows:,} different public rows"
        if first.neighbours is not None:
            said += " (an empty one, and free, where all similar records have stopped voting)"
        return said
    queries = min(first.rows, first.terms.affordable(Account()))
    return f"{queries:,} of {first.rows:,} different public rows are asked, and get a label or none"


def show_plan(made: ForecastChoice, labelled: Dataset, given: DataOptions) -> None:
    """Print or write what each way would come to, and the command that opens the best."""
    first = made.first
    words = ["quickstart", "PRIVATE", "--public", given.public, *given.table, *given.formats]
    command = command_text(*words, "--epsilon", f"{first.epsilon:g}")
    if as_json():
        ways = [
            {"way": each.first.way, "mechanism": each.first.spec, **asdict(each)}
            for each in made.ways
        ]
        print_json({"command": command, "ways": ways, "true_labels": made.truth})
        return
    unit = "records" if labelled.groups is None else "people, with all their records"
    _say(
        f"What ε = {first.epsilon:g}, δ = {first.delta:g} buys of {first.units:,} private {unit}, "
        f"if they are like the {len(labelled):,} public rows ({first.rows:,} different ones)."
    )
    if made.forecast is not None:
        show(made, labelled)
    _say(f"First: {way(first, unit)} {why(made)}")
    _say(f"It buys {buys(made, labelled)}")
    _say(f"To open it, with its questions:\n  {command}")
    _say("Of labels that are used one by one, right answers count: terrine plan --teachers N.")


def show(made: ForecastChoice, labelled: Dataset) -> None:
    """Print what students would be by each way, and what there is to compare with."""
    import numpy as np

    measures = ["right on", "balanced accuracy", *(["AUC"] if len(labelled.classes) == 2 else [])]
    table = Table("students of", *measures)
    for each in made.ways:
        name = _named(each.first)
        _row(table, f"[bold]{name}[/]" if each is made.ways[0] else name, each.forecast)
    _row(table, "(true labels of the same rows)", made.truth)
    counts = np.bincount(labelled.labels)
    table.add_row(
        "(the largest class alone)",
        f"{counts.max() / len(labelled):.1%}",
        f"{1 / np.count_nonzero(counts):.1%}",
        *(["0.50"] if len(labelled.classes) == 2 else []),
    )
    console.print(table)


def _row(table: Table, name: str, found: StudentForecast | None) -> None:
    if found is not None:
        ranked = [] if found.auc is None else [f"{found.auc[0]:.2f} to {found.auc[1]:.2f}"]
        table.add_row(name, _percent(found.accuracy), _percent(found.balanced_accuracy), *ranked)


def _named(first: FirstProject) -> str:
    """Name the way, with the number of teachers that are trained."""
    return first.way if first.neighbours else f"{first.way} ({first.teachers:,})"


def _percent(between: tuple[float, float]) -> str:
    return f"{between[0]:.1%} to {between[1]:.1%}"


def _and(ways: Sequence[ForecastOption]) -> str:
    return " and of ".join(each.first.way for each in ways)


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)
