"""From a file to a student by `terrine quickstart --yes` and `terrine student train`, as a user.

Each with its defaults, on data that nothing was tuned on, once for each seed, which deals the rows
anew. Printed beside the student: what was forecast, a student of the pool's labels, too, the
largest class alone, plain models on the same answers, and models without privacy.

    python benchmarks/walk.py --corpus [--out walk.jsonl]
    python benchmarks/walk.py flights letter adult=DIR fashion=DIR [--seeds 5] [--epsilon 1]
    python benchmarks/walk.py debian=FILE tweets

The data are those of `datasets.py`; --corpus: its tables and pictures that nothing was tuned on.
At the end it says whether they meet the bars. Where quickstart declines, that is said, and the walk
goes on with `--anyway`; what fails is said, and the others go on. With --out, what is in the file
already is not walked again.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from numpy.typing import NDArray
from pydantic import TypeAdapter
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from commands import CommandError, Predicted, Refused, Scores, open_project
from datasets import CORPUS, DealtFiles, find_sources
from terrine_client import Client, Labels
from terrine_experiments.page import table
from terrine_models.data.arrays import Dataset, number_distinct_rows
from terrine_models.tables.loading import read_schema
from terrine_server.planning.own_labels import MODELS, REGRESSION
from terrine_tables.columns import index_classes

PLAIN_ROWS = 50_000
"""Rows on which logistic regression is trained without privacy: more change little."""
PLAIN_VALUES = 8_000_000
"""Numbers in all of them."""
POINT = 0.01
WORSE = 0.02
"""Of accuracy, by which a student that is worse than the largest class is a fault."""
RIDGE = "ridge regression"
BOOSTING = "gradient boosting"
MOST_BOOSTED = 200
"""Features of an input from which boosting is not tried."""
BOOTSTRAPS = 200
"""Draws of the tested rows for the standard error of an AUC."""
SUMS, DESIGNED = "sums", "designed rows"
WAYS = {
    SUMS: "sums: ",
    "neighbours": "neighbours: ",
    "confident answers": "and else nothing",
    DESIGNED: "designed from the schema",
    "teachers": "teachers: ",
}
"""What quickstart says of each way to ask the records, and of it alone."""

MEASURES = {"accuracy": "right on", "balanced": "balanced accuracy", "auc": "AUC"}
"""What is said before the range of each."""
Promised = tuple[float, float, float]
"""From, to, and to what it was rounded."""


@dataclass(frozen=True)
class Lead:
    """By how much a model is ahead of the student on the tested rows, and the standard errors."""

    accuracy: float
    accuracy_error: float
    balanced: float
    auc: float | None = None
    auc_error: float | None = None

    @property
    def clear(self) -> bool:
        """Whether it is better by a point and two standard errors.

        In ranking, where there are two classes; or in accuracy, and not for leaving out a class
        that the student finds.
        """
        ranks, error = self.auc or 0.0, self.auc_error or 0.0
        if ranks > max(POINT, 2 * error):
            return True
        return self.accuracy > max(POINT, 2 * self.accuracy_error) and self.balanced >= 0


@dataclass(frozen=True)
class Walk:
    """What one seed gave. `forecast`: quickstart's line, with its ranges, if it said any.

    `promised`: different public rows whose answers quickstart called certain; 0 if none is asked.
    """

    data: str
    seed: int
    epsilon: float
    way: str
    forecast: str
    promised: int
    answered: int
    """Rows with any answer but a refusal."""
    exhausted: int
    """Of these, rows near which people were used up: free, without a label."""
    student: Scores
    with_labels: Scores
    """A student of the same project and of the pool's labels."""
    above_chance: bool
    """Whether the student is better than a guess, by two points and two standard errors."""
    majority: Scores
    plain: dict[str, Scores]
    """Models on the same answers, as `Labels.training_set` gives them, by name.

    None where the pool is not asked: of sums and designed rows.
    """
    leads: dict[str, Lead]
    """Of each of these."""
    logistic: Scores
    public: Scores
    seconds_until_open: float
    """Of a processor, as those below: what quickstart took, where it opened."""
    seconds_of_student: float
    declined: str | None = None
    """What quickstart said where it opened nothing without `--anyway`."""
    outcome: Literal["opened"] = "opened"

    @property
    def ranges(self) -> dict[str, Promised]:
        """What was promised, by the name of each of `Scores` that a range was said for."""
        found = {
            name: re.search(rf"{said} ([\d.]+)(%?) to ([\d.]*\d)", self.forecast)
            for name, said in MEASURES.items()
        }
        return {name: _read_range(each) for name, each in found.items() if each is not None}


@dataclass(frozen=True)
class Declined:
    """What quickstart said where it opened nothing even so, and what could have been learned."""

    data: str
    seed: int
    epsilon: float
    said: str
    majority: Scores
    logistic: Scores
    public: Scores
    outcome: Literal["declined"] = "declined"


Ended = Walk | Declined
_RECORD: TypeAdapter[Ended] = TypeAdapter(Walk | Declined)


def lines(found: Ended) -> Iterator[str]:
    """Yield the figures for people."""
    for name, value in vars(found).items():
        of_models = value.items() if isinstance(value, dict) else [("", value)]
        for model, figure in of_models:
            yield f"  {name.replace('_', ' '):20} {model:17} {figure}"


def main(
    data: Annotated[list[str] | None, typer.Argument(help="NAME, NAME=PATH of datasets.py")] = None,
    corpus: bool = False,
    seeds: int = 1,
    epsilon: float = 1.0,
    out: Path | None = None,
) -> None:
    """Walk, and print what was found."""
    sources = find_sources([*(data or ()), *(CORPUS if corpus else ())])
    if not sources:
        print("Skipped: no data were named. See the top of benchmarks/walk.py.")
        return
    known = {} if out is None else read_ended(out, epsilon)
    ended, failed = list[Ended](), dict[str, str]()
    for name, source in sources.items():
        for seed in range(seeds):
            if (name, seed) in known:
                ended.append(known[name, seed])
                continue
            print(f"{name}, seed {seed}:", flush=True)
            try:
                with tempfile.TemporaryDirectory(prefix="walk-") as place:
                    made = source.deal(np.random.default_rng(seed)).write(name, Path(place))
                    found = walk(name, made, seed, epsilon)
            except Exception as error:  # one set's failure must not end the walks of all others
                failed[f"{name}, seed {seed}"] = f"{type(error).__name__}: {error}"
                print(f"  FAILED\n{error}", flush=True)
                continue
            ended.append(found)
            print("\n".join(lines(found)), flush=True)
            if out is not None:
                with out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(found), ensure_ascii=False) + "\n")
    declined = sum(isinstance(each, Declined) or each.declined is not None for each in ended)
    print(f"\n{results(ended)}\n")
    print(f"walked {len(ended)}, of these declined {declined}; failed {len(failed)}")
    print("\n".join(map(str, bars(ended, failed))))


def read_ended(path: Path, epsilon: float) -> dict[tuple[str, int], Ended]:
    """Return the walks of this ε that an earlier run wrote, by data and seed."""
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [_RECORD.validate_json(line) for line in lines]
    return {(each.data, each.seed): each for each in found if each.epsilon == epsilon}


def results(ended: Sequence[Ended]) -> str:
    """Return a table of Markdown, with a line for each walk."""
    heads = ("", "chosen", "promised", "student", "with the pool's labels", "these alone")
    rows = [list(_cells(each)) for each in ended]
    return table([*heads, "largest class", "opened at once"], rows)


def _cells(each: Ended) -> Iterator[str]:
    yield each.data
    if isinstance(each, Declined):
        yield from ("–", "", "", "")
    else:
        yield each.way
        yield "; ".join(
            f"{low:.2f} to {high:.2f}" if name == "auc" else f"{low:.1%} to {high:.1%}"
            for name, (low, high, _) in each.ranges.items()
        )
        yield from (_brief(each.student), _brief(each.with_labels))
    yield from (_brief(each.public), f"{each.majority.accuracy:.1%}")
    yield "declined" if isinstance(each, Declined) or each.declined else "yes"


def _brief(scores: Scores) -> str:
    """Accuracy; balanced accuracy; AUC."""
    auc = "" if scores.auc is None else f"; {scores.auc:.3f}"
    return f"{scores.accuracy:.1%}; {scores.balanced:.1%}{auc}"


@dataclass(frozen=True)
class Bar:
    """What all walks together must show, and who does not."""

    what: str
    missed_by: tuple[str, ...]
    met: bool

    def __str__(self) -> str:
        named = f": {', '.join(self.missed_by)}" if self.missed_by else ""
        return f"{'met' if self.met else 'MISSED':7} {self.what}{named}"


def bars(ended: Sequence[Ended], failed: Mapping[str, str]) -> Iterator[Bar]:
    """Yield whether each bar is met."""
    opened = [each for each in ended if isinstance(each, Walk)]
    for measure in MEASURES:
        ranged = [each for each in opened if measure in each.ranges]
        outside = tuple(filter(None, (_miss(each, measure) for each in ranged)))
        within = len(ranged) - len(outside)
        said = f"{within} of {len(ranged)} within the promised range of {measure} (9 of 10)"
        yield Bar(said, outside, 10 * within >= 9 * len(ranged))
    behind = tuple(
        f"{each.data} ({name})"
        for each in opened
        for name, lead in each.leads.items()
        if lead.clear
    )
    yield Bar("no student clearly behind a plain model on the same answers", behind, not behind)
    chance = tuple(each.data for each in opened if not each.above_chance)
    yield Bar("every student is shown to be better than a guess", chance, not chance)
    agreed = [each for each in opened if each.declined is None]
    worse = tuple(
        each.data for each in agreed if each.student.accuracy < each.majority.accuracy - WORSE
    )
    yield Bar("no project that was opened is two points below the largest class", worse, not worse)
    wrongly = tuple(
        each.data
        for each in opened
        if each.declined is not None and _merit(each.student) > _merit(each.public) + POINT
    )
    yield Bar("no project was declined that is a point ahead of labels alone", wrongly, not wrongly)
    yield Bar("no walk failed", tuple(failed), not failed)


def _merit(scores: Scores) -> float:
    """The AUC, of two classes, and else the balanced accuracy, as quickstart compares."""
    return scores.balanced if scores.auc is None else scores.auc


def _read_range(found: re.Match[str]) -> Promised:
    unit = 0.01 if found[2] else 1.0
    digits = len(found[1].partition(".")[2])
    return float(found[1]) * unit, float(found[3]) * unit, unit * 10**-digits


def _miss(each: Walk, measure: str) -> str | None:
    """Say on which side of the promised range a student is, as it was rounded; None: within."""
    low, high, step = each.ranges[measure]
    got = getattr(each.student, measure)
    if low - step / 2 <= got <= high + step / 2:
        return None
    return f"{each.data} {'below' if got < low else 'above'}"


def walk(name: str, made: DealtFiles, seed: int, epsilon: float) -> Ended:
    """Do what a user would, and judge the student on the tested rows."""
    asked = ("--public", made.pool.name, *made.options, "--epsilon", f"{epsilon:g}")
    opened = open_project(made.private, *asked, anyway=True)
    written = next(made.private.parent.glob("*-schema.json"), None)
    private, pool, tested = made.read(None if written is None else read_schema(written))
    largest = Predicted(np.full(len(tested), np.bincount(private.labels).argmax()))
    common: dict[str, Any] = {
        "data": name,
        "seed": seed,
        "epsilon": epsilon,
        "majority": largest.scores(tested.labels),
        "logistic": _judged(_linear(), *_some(private, seed), tested).scores(tested.labels),
        "public": _judge_labels(opened.said, pool, tested).scores(tested.labels),
    }
    if isinstance(opened, Refused):
        return Declined(**common, said=opened.said)
    forecast, words = (_line(opened.said, heading) for heading in ("It buys", "By what"))
    way = next(name for name, known in WAYS.items() if known in words)
    certain = re.search(r"for certain, [a-z ]*([\d,]+) [\d,of ]*different", forecast)
    asks_pool = way not in (SUMS, DESIGNED)
    if certain is None and asks_pool:
        raise CommandError(f"quickstart did not say what is certain:\n{opened.said}")
    with opened.serve():
        learning = opened.train_student()
        own = opened.predict(made.tested, tested.classes)
        opened.train_student("--labels", made.pool.name)
        labelled = opened.predict(made.tested, tested.classes)
        answers = None
        if asks_pool:
            with Client(opened.url, opened.token) as client:
                answers = client.label(pool.inputs)
    plain = {} if answers is None else _plain(answers, pool, tested)
    outcomes = np.array([] if answers is None else answers.outcomes)
    numbers = number_distinct_rows(pool.inputs)[: len(outcomes)]
    answered = numbers[np.isin(outcomes, ("answered", "abstained", "exhausted"))]
    return Walk(
        **common,
        way=way,
        forecast=forecast,
        promised=0 if certain is None else int(certain[1].replace(",", "")),
        answered=len(np.unique(answered)),
        exhausted=len(np.unique(numbers[outcomes == "exhausted"])),
        student=own.scores(tested.labels),
        with_labels=labelled.scores(tested.labels),
        above_chance=is_above_chance(own, tested.labels),
        plain={name: found.scores(tested.labels) for name, found in plain.items()},
        leads={name: lead_of(found, own, tested.labels) for name, found in plain.items()},
        seconds_until_open=opened.seconds,
        seconds_of_student=learning,
        declined=opened.declined,
    )


def _line(said: str, heading: str) -> str:
    line = next((each for each in said.splitlines() if each.startswith(heading)), heading)
    return line.removeprefix(heading).strip()


def _plain(answers: Labels, pool: Dataset, tested: Dataset) -> dict[str, Predicted]:
    """Return what models of scikit-learn say that learned as README shows."""
    x, names, weights = answers.training_set(_flat(pool.inputs))
    y = index_classes(names, tested.classes)
    found = {
        RIDGE: _judged(make_pipeline(StandardScaler(), RidgeClassifier()), x, y, tested, weights)
    }
    if x.shape[1] <= MOST_BOOSTED:
        boosting = make_pipeline(HistGradientBoostingClassifier(max_iter=100, random_state=0))
        found[BOOSTING] = _judged(boosting, x, y, tested, weights)
    return found


def lead_of(model: Predicted, student: Predicted, labels: NDArray[np.int64]) -> Lead:
    """Return how far `model` is ahead, with errors of both on the same rows."""
    gains = (model.said == labels).astype(np.float64) - (student.said == labels)
    balanced = balanced_accuracy_score(labels, model.said) - balanced_accuracy_score(
        labels, student.said
    )
    lead = Lead(float(gains.mean()), float(gains.std() / len(gains) ** 0.5), float(balanced))
    better, own = model.shares, student.shares
    if better is None or own is None or len(np.unique(labels)) != 2:
        return lead

    def ahead(rows: NDArray[np.int64]) -> float:
        known = labels[rows]
        return float(roc_auc_score(known, better[rows]) - roc_auc_score(known, own[rows]))

    random, known = np.random.default_rng(0), np.arange(len(labels))
    drawn = (random.choice(known, len(known)) for _ in range(BOOTSTRAPS))
    again = [ahead(rows) for rows in drawn if len(np.unique(labels[rows])) == 2]
    return replace(lead, auc=ahead(known), auc_error=float(np.std(again)))


def is_above_chance(found: Predicted, labels: NDArray[np.int64]) -> bool:
    """Whether balanced accuracy or AUC are above a guess's by 2 points and 2 standard errors."""
    sizes = np.bincount(labels)
    classes = np.flatnonzero(sizes)
    recalls = np.array([(found.said[labels == each] == each).mean() for each in classes])
    error = float(np.sqrt((recalls * (1 - recalls) / sizes[classes]).sum()) / len(classes))
    if recalls.mean() - 1 / len(classes) > max(2 * POINT, 2 * error):
        return True
    if found.shares is None or len(classes) != 2:
        return False
    first, second = sizes[classes]
    error = float(np.sqrt((first + second + 1) / (12 * first * second)))
    gain = float(roc_auc_score(labels, found.shares)) - 0.5
    return gain > max(2 * POINT, 2 * error)


def _flat(inputs: NDArray[np.generic]) -> NDArray[np.float32]:
    return inputs.reshape(len(inputs), -1).astype(np.float32)


def _some(data: Dataset, seed: int) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    rows = min(PLAIN_ROWS, PLAIN_VALUES // int(np.prod(data.spec.shape)))
    chosen = np.random.default_rng(seed).permutation(len(data))[:rows]
    return data.inputs[chosen], data.labels[chosen]


def _linear() -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))


def _judge_labels(said: str, pool: Dataset, tested: Dataset) -> Predicted:
    """Return what the model says that quickstart named as the best of the pool's labels alone."""
    named = re.search(rf", by ({'|'.join(MODELS)})\b", said)
    predict = MODELS[REGRESSION if named is None else named[1]]
    shares = predict(pool, np.arange(len(pool)), tested.inputs)
    two = len(pool.classes) == 2
    return Predicted(shares.argmax(axis=1), shares[:, 1] if two else None)


def _judged(
    model: Any,
    inputs: NDArray[np.generic],
    labels: NDArray[np.int64],
    tested: Dataset,
    weights: NDArray[np.float64] | None = None,
) -> Predicted:
    fitted = {} if weights is None else {f"{model.steps[-1][0]}__sample_weight": weights}
    model.fit(_flat(inputs), labels, **fitted)
    x, shares = _flat(tested.inputs), None
    if len(tested.classes) == 2 and len(set(labels.tolist())) == 2:
        ranked = hasattr(model, "predict_proba")
        shares = model.predict_proba(x)[:, 1] if ranked else model.decision_function(x)
    return Predicted(model.predict(x), shares)


if __name__ == "__main__":
    typer.run(main)
