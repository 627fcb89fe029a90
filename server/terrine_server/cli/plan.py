"""`terrine plan`: what a student will be, or how many answers are right, before it is spent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from terrine_server.cli import reading
from terrine_server.cli.console import (
    as_json,
    command_text,
    console,
    errors,
    fail,
    print_json,
    with_json,
)
from terrine_server.cli.options import SPEC, mechanism_text, parse_spec
from terrine_server.cli.reading import parse_bins, parse_classes, split_names
from terrine_server.progress import stages_bar

if TYPE_CHECKING:
    from terrine_models.data.arrays import Dataset
    from terrine_models.features.maps import PublicData
    from terrine_models.tables.roles import SchemaProposal
    from terrine_models.teachers.manifests import Manifest
    from terrine_models.teachers.neighbours import NeighbourForecast
    from terrine_models.teachers.preview import Agreement
    from terrine_protocol.tables.columns import Note
    from terrine_server.owner.ways import ForecastChoice, ForecastOption, StudentForecast
    from terrine_server.planning.first_project import FirstProject, NeighbourPlan, Setting
    from terrine_server.planning.forecast import Votes
    from terrine_server.planning.plan import Candidate, Plan


FEATURES = 150
"""Of public rows, that shares are fitted to: about as many as the default student has."""


def show_plan_of_mechanism(found: Plan, rows: int) -> None:
    """Print a plan. `rows`: public rows, of a plan for noisy counts."""
    chosen = found.chosen
    name = chosen.spec["name"]
    _say(f"[bold]{name} with {chosen.teachers:,} teachers: {_parameters(chosen)}[/]")
    against = "the labels" if found.labelled else "what most teachers say"
    _say(
        f"Answers {chosen.answered:.1%} of queries; {chosen.accuracy:.2%} of the answers agree "
        f"with {against}. ε = {found.epsilon:g}, δ = {found.delta:g} buys, by each sound rule,"
    )
    table = Table("rule")
    for heading in ("answers", "queries at least"):
        table.add_column(heading, justify="right")
    for quoted in found.quotes:
        each = quoted.considered
        together = "" if each.answer_share is None else ", test and maximum priced together"
        table.add_row(f"{each.rule}{together}", f"{each.answers:,}", f"{each.queries:,}")
    console.print(table)
    if found.pass_rate < 1:
        _say(
            "Queries at least: whatever teachers say. Answers: if they agree as far as was said; "
            "how a price is divided between answers and abstentions does not depend on it."
        )
    if name == "noisy_votes":
        _show_fitted(found, rows)
    else:
        _show_publishing(found)
    if len(found.by_teachers) > 1:
        _show_by_teachers(found)
    _say(f"To open the project:\n  {command(found)}")


def show_all(plans: Sequence[Plan]) -> None:
    """Print the best plans of several mechanisms, and the command for the first of them."""
    best = plans[0]
    against = "the labels" if best.labelled else "what most teachers say"
    _say(
        f"What ε = {best.epsilon:g}, δ = {best.delta:g} buys of each mechanism, by right answers, "
        f"for labels that are used one by one. Right: agrees with {against}."
    )
    table = Table()
    table.add_column("mechanism", no_wrap=True)
    table.add_column("parameters")
    for heading in ("answered", "right", "answers", "queries at least"):
        table.add_column(heading, justify="right")
    several = len({each.chosen.teachers for each in plans}) > 1
    for each in plans:
        chosen, name = each.chosen, str(each.chosen.spec["name"])
        of_how_many = f"{chosen.teachers:,} teachers, " if several else ""
        table.add_row(
            f"[bold]{name}[/]" if each is best else name,
            of_how_many + _parameters(chosen),
            f"{chosen.answered:.1%}",
            f"{chosen.accuracy:.2%}",
            f"{chosen.answers:,.0f}",
            f"{each.quotes[0].considered.queries:,}",
        )
    console.print(table)
    _say(
        "To train a model, labelled public rows tell what it will be: terrine plan --public POOL "
        "--units N."
    )
    _say(f"To open a project with the first one:\n  {command(best)}")
    _say("More about one of them: terrine plan MECHANISM")


def show_lasting(
    found: NeighbourPlan, ensemble: str, of: DescribedStandIns, epsilon: float, delta: float
) -> None:
    """Print what public rows foretell of the units of an ensemble, and the command."""
    from terrine_server.planning.first_project import near_for

    _say(
        f"[bold]neighbours: σ = {found.sigma:g}[/] for {found.queries:,} public rows, each asked "
        f"once, at ε = {epsilon:g}, δ = {delta:g}."
    )
    _say(lasts(found, of))
    suited = near_for(of.units, found.queries, epsilon, delta)
    if not 0.5 <= suited / found.near <= 2:
        _say(f"For this, --near {suited:,} would suit: `terrine neighbours build`.")
    spec = {"name": "neighbours", "sigma": found.sigma, "queries": found.queries}
    _say(
        f"To open the project:\n  terrine project open NAME --ensemble {ensemble} --mechanism "
        f"{mechanism_text(spec)} --epsilon {epsilon:g} --delta {delta:g}"
    )


@dataclass(frozen=True)
class DescribedStandIns:
    """Who stands for the units of an ensemble of neighbours in what is foretold, in words."""

    units: int
    who: str
    but: str = ""


def stand_ins(manifest: Manifest, found: NeighbourForecast) -> DescribedStandIns:
    """Say what is assumed of people with several records."""
    if found.people:
        return DescribedStandIns(manifest.units, "people of the public rows, with all of these")
    if manifest.partition is None:
        return DescribedStandIns(manifest.units, "public rows, of one record each")
    return DescribedStandIns(
        manifest.units,
        "public rows, each as a person with one record",
        f" The pool does not say whose its rows are ({manifest.partition.group_column}), so this "
        "assumes that nobody has several records near a query. Whoever does has spent theirs "
        "sooner.",
    )


def lasts(found: NeighbourPlan, of: DescribedStandIns) -> str:
    """Say what public rows foretell of a project of neighbours."""
    return (
        f"By {of.who}: some {found.votes:,.0f} vote on a query, on average "
        f"over all, so the noise of one answer is {found.noise:.0%} of its votes; the allowance is "
        f"{found.allowance:,}, and {found.retired:.0%} of the units will have spent theirs after "
        f"{found.queries:,} queries.{of.but}"
    )


def _show_fitted(found: Plan, rows: int) -> None:
    """Print what the noise of counts is worth once shares are fitted to public features."""
    from terrine_server.planning.forecast import fitted_noise

    sigma, n = float(str(found.chosen.spec["sigma"])), found.chosen.teachers
    _say(
        f"noisy_votes answers each of {rows:,} rows with noisy counts. The noise of one row's "
        f"share is {sigma / n:.1%} of the {n:,} teachers; of shares that are fitted to {FEATURES} "
        f"features over all rows, {fitted_noise(rows, n, sigma, FEATURES):.2%}, however many rows: "
        "compare it with how far the votes of the classes lie apart."
    )


def _show_publishing(found: Plan) -> None:
    publishing = found.publishing
    worst = max(int(quoted.considered.answers / found.pass_rate) for quoted in found.quotes)
    if publishing is None or publishing.queries <= worst:
        _say("Data-dependent accounting does not pay here: use the worst case.")
        return
    order = publishing.publication.order
    _say(
        f"Data-dependent accounting would answer {publishing.queries / worst - 1:.0%} more, with "
        f"figures published after {', '.join(f'{k:,}' for k in publishing.schedule)} queries. To "
        f"use it, register the ensemble with --rule rdp:{order:g} and open the project with "
        "--accounting data_dependent and the --consensus of this plan."
    )


def _show_by_teachers(found: Plan) -> None:
    _say("The best candidate for each number of teachers:")
    table = Table("teachers", "parameters", "answered", "right")
    table.add_column("answers", justify="right")
    for each in found.by_teachers:
        name = _parameters(each)
        table.add_row(
            f"{each.teachers:,}",
            f"[bold]{name}[/]" if each is found.chosen else name,
            f"{each.answered:.1%}",
            f"{each.accuracy:.2%}",
            f"{each.answers:,.0f}",
        )
    console.print(table)


def command(found: Plan) -> str:
    """Return the command that opens the planned project, with names to fill in."""
    mechanism = mechanism_text(dict(found.chosen.spec))
    parts = ["terrine project open NAME --ensemble ENSEMBLE", f"--mechanism {mechanism}"]
    return " ".join([*parts, f"--epsilon {found.epsilon:g}", f"--delta {found.delta:g}"])


def document(found: Plan, votes: str) -> dict[str, Any]:
    """Return a plan as JSON; `votes` says where the votes came from."""
    considered = [asdict(quoted.considered) for quoted in found.quotes]
    fields = asdict(replace(found, quotes=())) | {"quotes": considered}
    return {"command": command(found), "votes": votes, **fields}


def _parameters(candidate: Candidate) -> str:
    given = candidate.spec.items()
    return ", ".join(f"{key} {value:g}" for key, value in given if key != "name")


def _say(text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)


Say = Callable[[str], None]


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

    def proposed(self, note: Say) -> SchemaProposal:
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
                classes=parse_classes(self.classes),
                bins=parse_bins(self.bins),
                group=self.group,
                columns=split_names(self.columns),
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
    _say_as_is(
        f"What ε = {first.epsilon:g}, δ = {first.delta:g} buys of {first.units:,} private {unit}, "
        f"if they are like the {len(labelled):,} public rows ({first.rows:,} different ones)."
    )
    if made.forecast is not None:
        show_ways(made, labelled)
    _say_as_is(f"First: {way(first, unit)} {why(made)}")
    _say_as_is(f"It buys {buys(made, labelled)}")
    _say_as_is(f"To open it, with its questions:\n  {command}")
    _say_as_is(
        "Of labels that are used one by one, right answers count: terrine plan --teachers N."
    )


def show_ways(made: ForecastChoice, labelled: Dataset) -> None:
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


def _say_as_is(text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)


LARGEST_COUNT = 2**53
"""Votes for a class: floating point has every whole number up to it."""


class VoteSource(StrEnum):
    """The training data of the teachers that cast votes."""

    PUBLIC = "public"
    SYNTHETIC = "synthetic"
    LEAK = "private-acknowledge-leak"


def check_origin(votes_are: VoteSource | None, option: str) -> None:
    """Refuse votes that may be private, unless it is acknowledged that no budget covers them."""
    if votes_are is None:
        fail(
            f"Say what the teachers that cast these votes were trained on: {option} public or "
            f"{option} synthetic. Votes of teachers trained on private data are private, whatever "
            "they voted on. Parameters chosen by looking at them, and every number of the report, "
            "reveal something about the training data, and no budget accounts for that: use "
            "teachers trained on public data, or `terrine plan --consensus`. If nobody else will "
            f"ever see the report and no project will be based on it, {option} {VoteSource.LEAK}."
        )
    if votes_are is VoteSource.LEAK:
        errors.print(
            "[bold red]WARNING: this report is made from PRIVATE votes.[/] It is not "
            "differentially private. Show it to nobody and open no project with parameters taken "
            "from it: the project's guarantee would not hold.",
            soft_wrap=True,
        )


def load_votes(path: Path, sizes: Sequence[int]) -> Votes:
    """Read votes: counts [B, m] in an .npy, or `counts` and, optionally, `labels` [B] in an .npz.

    Counts that are whole numbers in floating point, as PATE's own files have them, are read.
    """
    import numpy as np

    from terrine_models.data.arrays import read_arrays
    from terrine_server.planning.forecast import Votes

    arrays = read_arrays(path)
    if not isinstance(arrays, dict):
        arrays = {"counts": arrays}
    if "counts" not in arrays:
        fail(
            f"{path} has no array `counts` of shape [queries, classes]; it has "
            f"{', '.join(arrays) or 'none'}."
        )
    counts = arrays["counts"]
    if counts.dtype.kind not in "iuf" or not np.all(counts == np.floor(counts)):
        fail(f"{path}: counts must be whole numbers, how many teachers voted for each class.")
    if counts.ndim != 2 or counts.size == 0:
        fail(
            f"{path}: counts must be [queries, classes], a row for each query; found shape "
            f"{list(counts.shape)}."
        )
    if counts.dtype.kind == "f" and np.abs(counts).max() > LARGEST_COUNT:
        fail(f"{path}: a count is larger than {LARGEST_COUNT:,}.")
    counts = counts.astype(np.int64)
    down, across = counts.sum(axis=0), counts.sum(axis=1)
    if np.ptp(across) and not np.ptp(down):
        fail(
            f"{path}: counts of shape {list(counts.shape)} have one sum in each column, not in "
            "each row. Expected a row for each query and a column for each class: transpose them."
        )
    if not sizes:
        sizes = [int(across[0])]
    if len(sizes) != 1:
        fail("Votes in a file were cast by one ensemble; give its size with --teachers.")
    return Votes.observed(counts, arrays.get("labels"), teachers=sizes[0])


def ensemble_directory(ensemble: str) -> Path:
    """The directory of an ensemble that is named, or given by path: of its newest edition."""
    from terrine_models.storage.manifests import MANIFEST
    from terrine_models.teachers.federation import FEDERATION
    from terrine_server.settings import Settings

    path = Path(ensemble)
    if not any((path / name).exists() for name in (MANIFEST, FEDERATION)) and len(path.parts) == 1:
        named = Settings().ensembles_dir / ensemble
        path = named if named.exists() else path
    editions = [each for each in path.glob("edition-*") if each.name[8:].isdigit()]
    return max(editions, key=lambda each: int(each.name[8:]), default=path)


@with_json
def evaluate(
    ensemble: Annotated[
        str, typer.Argument(metavar="ENSEMBLE", help="Name or directory of an ensemble.")
    ],
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="Labelled data that no teacher was trained on: IDX images (labels beside them), "
            ".npz with x and y, a table, or a folder of pictures for each class.",
        ),
    ],
    trained_on: Annotated[
        VoteSource | None, typer.Option(help="What the teachers were trained on.")
    ] = None,
    votes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also save the votes, as `terrine plan --votes` reads."),
    ] = None,
) -> None:
    """Measure how far teachers agree, and how often they are right, by class.

    To know this before private teachers are trained, train a stand-in: as many teachers, with as
    many records each, on data that are public. Votes of private teachers are private, even votes on
    public inputs, and what is chosen by looking at them is outside every guarantee.

    [bold]Example[/bold]

      terrine ensemble evaluate stand-in census.csv --trained-on public --votes votes.npz

      terrine plan --votes votes.npz --votes-are public --epsilon 1
    """
    import numpy as np

    from terrine_models.teachers.ensemble import Ensemble
    from terrine_models.teachers.preview import Agreement
    from terrine_protocol.files import replacing

    check_origin(trained_on, "--trained-on")
    if votes is not None and votes.suffix.lower() != ".npz":
        fail(f"--votes must end in .npz; {votes} does not.")
    loaded = Ensemble.load(ensemble_directory(ensemble))
    manifest = loaded.manifest
    labelled = _labelled(data, manifest, reading.note_aside if as_json() else reading.note)
    counts = loaded.votes(labelled.inputs)
    found = Agreement.of(counts, labelled.labels, manifest.classes)
    if votes is not None:
        with replacing(votes) as archive:
            np.savez_compressed(archive, counts=counts, labels=labelled.labels)
    if as_json():
        print_json(asdict(found))
        return
    _show(found, manifest, data)
    if votes is None:
        levels = ",".join(f"{level:.2g}" for level in found.consensus)
        options = f"--teachers {found.teachers} --classes {len(found.classes)} --consensus {levels}"
    else:
        options = f"--votes {votes} --votes-are {trained_on}"
    console.print(
        f"To plan with it: terrine plan {options} --epsilon 1", soft_wrap=True, highlight=False
    )


def _labelled(path: Path, manifest: Manifest, note: Note) -> Dataset:
    data = reading.format_of(path, manifest).labelled(path, manifest, note, True)
    if data.spec.shape != manifest.input.shape or data.spec.dtype != manifest.input.dtype:
        fail(
            f"{path} has inputs {data.spec.dtype} {list(data.spec.shape)}; the ensemble takes "
            f"{manifest.input.dtype} {list(manifest.input.shape)}."
        )
    return data


def _show(found: Agreement, manifest: Manifest, data: Path) -> None:
    console.print(
        f"{found.teachers:,} teachers of {manifest.name} on {found.inputs:,} records of {data}:\n"
        f"one teacher is right on {found.mean_teacher:.2%} on average, most of them on "
        f"{found.plurality:.2%}, the larger class on {found.majority:.2%}.",
        soft_wrap=True,
        highlight=False,
    )
    levels = Table("agree", "records", "of them right")
    above = ""
    for level in found.levels:
        name = f"{level.agreement:.0%} or more" if level.agreement else "less"
        levels.add_row(name + above, f"{level.inputs:,}", _share_as_text(level.right))
        above = f", below {level.agreement:.0%}" if level.agreement else ""
    console.print(levels)
    classes = Table("class", "records", "most teachers right", "mean share of votes")
    for each in found.classes:
        row = (f"{each.inputs:,}", _share_as_text(each.right), _share_as_text(each.votes))
        classes.add_row(escape(each.name), *row)
    console.print(classes)


def _share_as_text(share: float | None) -> str:
    return "–" if share is None else f"{share:.2%}"


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
    label: Label = None,
    bins: reading.Bins = None,
    group: Group = None,
    columns: Columns = None,
    classes: Annotated[
        str | None,
        typer.Option(
            metavar="N|A,B,…", help="Number of classes, or their names. Default: 10; --label's."
        ),
    ] = None,
    images: reading.Images = None,
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
        given = DataOptions(public, label, group, columns, classes, images, bins=bins)
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
        show_plan_of_mechanism(found, rows)


def _for_a_model(given: DataOptions, units: int, epsilon: float, consensus: str) -> None:
    """Rank the ways to ask by what students will be; without public labels, mechanisms."""
    from terrine_models.data.arrays import DataError, distinct
    from terrine_models.features.maps import PublicData
    from terrine_models.tables.loading import is_table
    from terrine_server.planning.first_project import Setting, delta_for, teachers_for
    from terrine_server.planning.forecast import Consensus, Votes

    if not given.public.exists():
        fail(f"There is no {given.public}.")
    note = reading.note_aside if as_json() else reading.note
    schema = given.proposed(note).schema if is_table(given.public) else None
    try:
        if schema is not None:
            data = reading.load_labelled_rows(given.public, schema, note)
        else:
            given.check_no_table()
            classes, images = given.classes, given.images
            data = reading.load_private(given.public, None, classes, images, given.public)
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
    show_plan(chosen(setting, pool, data, data), data, given)


def _compared(ensembles: list[Votes], epsilon: float, delta: float, origin: str) -> None:
    """Rank mechanisms by right answers, for labels that are used one by one."""
    from terrine_server.planning.plan import compare

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
    from terrine_server.planning.opening import EXPECTED_STUDENT
    from terrine_server.planning.plan import plan as make_plan
    from terrine_server.planning.plan import plan_counts

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
    from terrine_server.owner.ways import neighbours_of
    from terrine_server.planning.first_project import plan_neighbours

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
    names = reading.parse_classes(classes)
    return CLASSES if names is None else len(names)


def _sizes(text: str | None) -> list[int]:
    try:
        return [int(part) for part in text.split(",")] if text else []
    except ValueError:
        fail(f"--teachers takes whole numbers, such as 250 or 250,1000; not {text!r}.")
