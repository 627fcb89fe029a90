"""What the owner reads before anything is made: who is protected, by what, and what it buys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from terrine_models.data.arrays import Dataset
from terrine_server.ledger import PopulationRecord
from terrine_server.planning.first_project import (
    ConfidentProject,
    DesignedProject,
    FirstProject,
    NeighbourProject,
    SumProject,
    max_guess_accuracy,
)
from terrine_server.planning.forecast import Forecast, Option
from terrine_server.planning.own_labels import OwnLabels
from terrine_server.planning.students import DRAWS
from terrine_server.quickstart.records import ProjectData, PublicRows

# Columns that are named in a sentence; of more, how many.
MAX_NAMES = 8


def describe(
    data: ProjectData, forecast: Forecast, joined: PopulationRecord | None
) -> dict[str, str]:
    """Say in five lines who is protected, how much, by what, what it buys, and what is used.

    `joined`: the population whose cap is used, if that is fixed already.
    """
    first = forecast.first
    unit, units, several = "record", "records", data.rows_of_people
    if data.person is not None:
        unit, units, several = f"{data.person}, with all its records", "people", ""
    right = max_guess_accuracy(first.epsilon, first.delta)
    lines = {
        "Protects": f"each single {unit}, of {first.units:,}.{several}",
        "How much": f"ε = {first.epsilon:g}, δ = {first.delta:g}. Somebody who knows all the "
        f"others, and guesses which of two equally likely versions of this one is there, is right "
        f"at most {right:.1%} of the time (50 % without any answer).",
        "By what": " ".join(
            filter(
                None,
                (_describe_option(first, units), describe_columns(data), _explain_choice(forecast)),
            )
        ),
        "It buys": _describe_purchase(data, forecast),
        "It uses": f"{first.share:.0%} of a cap of ε = {first.cap.epsilon:g}: what all projects "
        f"together may ever tell about these people. {int(1 / first.share)} like this one would "
        "fit, as several ε add up to less than their sum. The cap cannot be changed later.",
    }
    if joined is not None:
        lines["It uses"] += (
            f" It is the cap of the population {joined.name}, of which "
            f"{1 - joined.reserved / joined.cap:.0%} is free."
        )
    return lines


def _describe_option(first: FirstProject, unit: str) -> str:
    """Say how the records are asked, which are those of so many `unit`, in the plural."""
    noise = f"Random noise (σ = {first.sigma:g}) is added to the number of votes of each class."
    if isinstance(first, SumProject):
        sums = first.release
        return (
            f"sums: {sums.features:,} public features of a record, of a length of at most "
            f"{sums.norm:,} for each person, are added up once over the {unit} of each class, with "
            f"noise (σ = {sums.sigma:g}). Nothing else of the records is kept, or told: a model "
            "of the sums answers whatever is asked."
        )
    if isinstance(first, NeighbourProject):
        return (
            f"neighbours: the {unit} most similar to the row that is asked about vote, some "
            f"{first.neighbours.near:,} of them. {noise} Each has an account in this project, and "
            f"stops voting in it when that is exhausted: {first.neighbours.retired:.0%} of them by "
            "the end."
        )
    teachers = (
        f"{first.teachers:,} teachers: models, each trained on {first.units // first.teachers} or "
        f"more {unit} that no other is trained on."
    )
    if isinstance(first, ConfidentProject):
        threshold = int(str(first.confident["threshold"])) / first.teachers
        return (
            f"{teachers} Where about {threshold:.0%} of them agree, by a count with noise, the "
            "answer is their class, and else nothing."
        )
    if isinstance(first, DesignedProject):
        release = first.release
        return (
            f"{teachers} {noise} They are asked rows that are designed from the schema. The "
            f"project begins with {len(release.cells)} histograms, in which each of the {unit} "
            f"counts once, with noise of σ = {release.sigma:g} in every count: how common classes "
            f"are (within {min(1.0, 2 * release.sigma / first.units):.1%}), and where the numbers "
            f"of a column lie. By themselves they cost ε = {_describe_release_epsilon(first)}."
        )
    return f"{teachers} {noise}"


def _describe_release_epsilon(first: FirstProject) -> str:
    return f"{first.terms.epsilon_spent(first.terms.start.spent):.2g}"


def _explain_choice(forecast: Forecast) -> str:
    """Say why it is this option and no other."""
    _, *others = forecast.options
    if not others:
        return ""
    if forecast.students is None:
        if isinstance(forecast.first, SumProject):
            return f"Nothing could be tried out. It takes less time than {_join(others)}."
        return (
            f"Its votes have less noise than those of {_join(others)}; nothing could be tried out."
        )
    said = []
    if worse := [each for each in others if each.worse]:
        said.append(f"clearly better than those of {_join(worse)}")
    ahead = [each for each in others if _is_ahead(each, forecast)]
    if alike := [each for each in others if not each.worse and each not in ahead]:
        said.append(f"about as good as those of {_join(alike)}")
        if isinstance(forecast.first, SumProject):
            said.append("made in least time")
    measure = "balanced accuracy" if forecast.students.auc is None else "AUC"
    if ahead:
        more = "neighbours may gain by all the records that did not stand in"
        said.append(f"behind those of {_join(ahead)} by less than {more}")
    return f"In trials on public rows, by {measure}, its students were {', and '.join(said)}."


def _is_ahead(option: Option, forecast: Forecast) -> bool:
    found, students = option.students, forecast.students
    return found is not None and students is not None and found.is_clearly_better(students)


def describe_columns(data: ProjectData) -> str:
    """Say of which columns of a table nothing is learned; nothing if there are none."""
    asked = data.asked
    table = asked.sample.encoding if isinstance(asked, PublicRows) else asked
    if table is None:
        return ""
    used = table.features
    left_out = [each.name for each in table.columns if each.role == "ignored"]
    if not left_out:
        return ""
    return (
        f"It learns from {len(used):,} of {len(used) + len(left_out):,} columns: "
        f"{_list_some(used)}; not from {_list_some(left_out)}."
    )


def _list_some(names: Sequence[str]) -> str:
    if (more := len(names) - MAX_NAMES) > 1:
        return f"{', '.join(names[:MAX_NAMES])} and {more:,} more"
    return ", ".join(names)


def _describe_purchase(data: ProjectData, forecast: Forecast) -> str:
    """Say what is certain, what else the project should buy, and what is there without it."""
    certain, found = f"for certain, {_certain_answers(forecast.first)}", forecast.students
    labelled = data.labelled
    if labelled is None:
        return (
            f"{certain}. How good a student becomes cannot be said: that would take labels of "
            "public rows. A trial on private ones would tell something about them."
        )
    alone = "" if forecast.own is None else f" {describe_own_labels(forecast.own)}"
    if found is None:
        return (
            f"{certain}. How good a student becomes cannot be said: {len(labelled):,} labelled "
            f"public rows are too few for a trial.{alone}"
        )
    largest = float(np.bincount(labelled.labels).max() / len(labelled))
    ranked = "" if found.auc is None else f", AUC {write_auc(found.auc)}"
    said = (
        f"{certain}. In {DRAWS} trials on public rows, of which {found.stand_ins:,} stood in for "
        f"private ones, students were right on {write_range(found.accuracy)}{ranked}, balanced "
        f"accuracy {write_range(found.balanced_accuracy)} (the average over the classes; a guess "
        f"has {found.chance:.0%}). The largest class alone is right on {largest:.1%}.{alone} "
        "Expect the same if the private rows are like the public ones."
    )
    if found.useless:
        return f"{said} That is next to nothing: more records or a larger ε would help."
    if len(labelled.classes) == 2 and found.accuracy[1] < largest:
        said += (
            " Always predicting the larger class would be right more often, but would never find "
            "the other. Who prefers accuracy trains with --threshold accuracy."
        )
    return said


def describe_own_labels(own: OwnLabels) -> str:
    """Say what labelled public rows alone are worth."""
    return (
        f"Your {own.rows:,} labelled public rows alone, without any private answer: "
        f"{describe_model(own)}."
    )


def describe_model(own: OwnLabels) -> str:
    """Say how good the model of labelled public rows alone is: by AUC, of two classes."""
    found = own.students
    if found.auc is not None:
        return f"AUC {found.merit:.3f} ({write_auc(found.auc, 3)}), by {own.model}"
    return (
        f"right on {write_range(found.accuracy)}, balanced accuracy "
        f"{write_range(found.balanced_accuracy)}, by {own.model}"
    )


def _certain_answers(first: FirstProject) -> str:
    """Say what a project buys, whatever teachers say."""
    if isinstance(first, SumProject):
        return "answers to any number of questions, all by the model of these sums"
    if isinstance(first, DesignedProject):
        return (
            f"noisy votes on {first.rows:,} rows that are designed from the schema, and published "
            "with the project"
        )
    if not isinstance(first, ConfidentProject):
        said = f"noisy votes on all {first.rows:,} different public rows"
        if isinstance(first, NeighbourProject):
            said += " (an empty one, and free, where all similar records have stopped voting)"
        return said
    queries = min(first.rows, first.terms.affordable(first.terms.start))
    return f"{queries:,} of {first.rows:,} different public rows are asked, and get a label or none"


def list_options(forecast: Forecast, labelled: Dataset) -> list[dict[str, str]]:
    """Return what the students of each option would be, and what there is to compare with."""
    taught = {name_option(each.first): each.students for each in forecast.options}
    taught["(true labels of the same rows)"] = forecast.truth
    if forecast.own is not None:
        taught["(all labelled public rows alone)"] = forecast.own.students
    rows = [
        {
            "students of": name,
            "right on": write_range(found.accuracy),
            "balanced accuracy": write_range(found.balanced_accuracy),
            **({} if found.auc is None else {"AUC": write_auc(found.auc)}),
        }
        for name, found in taught.items()
        if found is not None
    ]
    counts = np.bincount(labelled.labels)
    largest = {
        "students of": "(the largest class alone)",
        "right on": f"{counts.max() / len(labelled):.1%}",
        "balanced accuracy": f"{1 / np.count_nonzero(counts):.1%}",
        "AUC": "0.50",
    }
    return [*rows, {heading: largest[heading] for heading in rows[0]}]


def name_option(first: FirstProject) -> str:
    """Name the option, with the number of teachers that are trained."""
    if isinstance(first, NeighbourProject | SumProject):
        return first.option
    return f"{first.option} ({first.teachers:,})"


def write_range(between: tuple[float, float]) -> str:
    """Write the ends of a range of shares."""
    return f"{between[0]:.1%} to {between[1]:.1%}"


def write_auc(between: tuple[float, float], digits: int = 2) -> str:
    """Write the ends of a range of AUCs."""
    return f"{between[0]:.{digits}f} to {between[1]:.{digits}f}"


def _join(options: Sequence[Option]) -> str:
    *before, last = (each.first.option for each in options)
    return f"{', '.join(before)} and {last}" if before else last
