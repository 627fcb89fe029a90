"""The product beside what a user could take instead: the same rows, test rows, ε and δ.

    make board ARGS="adult=DIR nassCDS flights mnist=DIR debian=FILE fashion=DIR glyphs=DIR"

`datasets.py` says what can be named. The product runs by its commands, `quickstart` with its
defaults, and with `--anyway` where that declines; one student learns from what private records
said alone, another from the pool's labels, too. The others by `peers/run.py`, each in the
environment that has it, within a time limit. What fails is said, and the rest goes on. Results are
added to a file, and what is in it already is not run again; at the end its page and picture are
written:

    python benchmarks/board.py adult=DIR --peers build/board [--epsilon 0.1,0.3,1] [--seeds 3]
                               [--methods NAME,…] [--results docs/board.jsonl]
    python benchmarks/board.py --page        # write the page of the results again

With --in-process, the product is not run by its commands: the functions behind them make sums and
a student of them, whatever quickstart would choose, in seconds; the page has a row of its own.

Each of the others that protects adding or removing a row is run twice: with ε and δ spent in its
own sense, and with what gives ε and δ in ours, which is replacing all that one person gave, as the
page explains. Where people have several rows, it gets one of each person in our sense.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import TypeAdapter
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold

from commands import CommandError, Predicted, Refused, open_project
from datasets import TEXTS, DealtFiles, DealtTable, Source, find_sources
from sums import release
from terrine_experiments.page import table
from terrine_experiments.pictures import COLOURS, Curve, Panel, draw_panels
from terrine_models.data.arrays import Dataset
from terrine_models.features.fitting import public_features
from terrine_models.features.maps import FeatureMap
from terrine_models.features.public import PublicData
from terrine_models.students.labels import PublicLabels, PublicModel, fit_public
from terrine_models.students.models import Student, Task
from terrine_models.students.sums import fit_sums
from terrine_models.tables.proposal import propose_schema
from terrine_models.teachers.neighbours import TABLE_COORDINATES
from terrine_protocol.schema import FEATURE_ROLES, TableSchema
from terrine_server.planning.first_project import default_delta

HERE = Path(__file__).parent
RESULTS = HERE.parent / "docs" / "board.jsonl"
"""Beside it lie its page and its picture."""
EPSILONS = (0.03, 0.1, 0.3, 1.0, 3.0)
LIMIT_SECONDS = 900
"""Processor seconds of one run of one method; what takes longer is said to."""
WIDTH = 300
"""Of public features of pictures and texts."""
BLOCK_ROWS = 2000
NO_PRIVACY_ROWS = 50_000
"""Rows on which models without privacy are trained."""
FORECAST = r"students were right on ([\d.]+)% to ([\d.]+)%(?:, AUC ([\d.]+) to ([\d.]+))?"
"""What quickstart says of trials on public rows."""
LEAST_SEEDS = 3
"""Of which a standard error is told."""
SHOWN = 0.35
"""Below the best: what is drawn of AUC or accuracy."""
PRODUCT = "terrine"
PRODUCT_LABELS = "terrine-labels"
PRODUCT_SUMS = "terrine-sums"
PRODUCT_SUMS_LABELS = "terrine-sums-labels"
NEIGHBOURS = "terrine-neighbours"
"""Of pictures, what quickstart opened before sums were among its ways."""
FUNCTIONS = (PRODUCT_SUMS, PRODUCT_SUMS_LABELS)
COMMANDS = (PRODUCT, PRODUCT_LABELS)
PRODUCTS = {
    PRODUCT_SUMS: "**Terrine, sums, by functions**",
    PRODUCT_SUMS_LABELS: "**Terrine, sums and the pool's labels, by functions**",
    NEIGHBOURS: "**Terrine, neighbours, by commands of an earlier version**",
    PRODUCT: "**Terrine, quickstart, without the pool's labels**",
    PRODUCT_LABELS: "**Terrine, quickstart, with the pool's labels**",
}
PUBLIC_ALONE = "public labels alone"
NO_PRIVACY = "without privacy"
LARGEST = "the largest class"
NO_EPSILON = math.inf
BEGIN, END = "<!-- begin results -->", "<!-- end results -->"
Kind = Literal["table", "pictures", "texts"]
Reading = Literal["own", "ours", "both"]
"""In whose sense ε is meant; `both` where they are the same."""


@dataclass(frozen=True)
class Peer:
    """A method of `peers/run.py`, what it is called on the page, and what it promises."""

    title: str
    kinds: tuple[Kind, ...]
    environment: Literal["models", "synthetic"] = "models"
    replaces: bool = False
    """Whether ε is for replacing a row, rather than for adding or removing one."""
    two_classes: bool = False
    labels: bool = False
    """Whether it learns from the pool's labels where to look, rather than settings."""


EVERY: tuple[Kind, ...] = ("table", "pictures", "texts")
PEERS: dict[str, Peer] = {
    "diffprivlib-logistic": Peer("diffprivlib, logistic regression", EVERY, replaces=True),
    "diffprivlib-forest": Peer("diffprivlib, forest", ("table",)),
    "dp-ebm": Peer("interpret, DP-EBM", ("table",), two_classes=True),
    "opacus-features": Peer("Opacus, DP-SGD on public features", EVERY),
    "opacus-warm": Peer("Opacus, DP-SGD from what the pool's labels teach", EVERY, labels=True),
    "noisy-products": Peer("noisy X'y by hand, ridge regression", EVERY, replaces=True),
    "noisy-products-chosen": Peer(
        "noisy X'y of features that the pool's labels choose", EVERY, replaces=True, labels=True
    ),
    "opacus-network": Peer("Opacus, DP-SGD of a network", ("pictures",)),
    "synthetic-mst": Peer("smartnoise-synth, MST and a model on it", ("table",), "synthetic"),
    "synthetic-aim": Peer("smartnoise-synth, AIM and a model on it", ("table",), "synthetic"),
    "plain-pate": Peer("PATE by hand, dp-accounting", EVERY, replaces=True),
}


@dataclass(frozen=True)
class Result:
    """What one method gave. `failed` says why it gave nothing; shares are of the tested rows."""

    data: str
    seed: int
    epsilon: float | None
    method: str
    reading: Reading
    spent: tuple[float, float] = (0.0, 0.0)
    """ε and δ, in the method's own sense."""
    tested: int = 0
    rarest: int = 0
    """Tested rows of the rarest class."""
    accuracy: float | None = None
    balanced: float | None = None
    auc: float | None = None
    seconds: float = 0.0
    tuning_seconds: float = 0.0
    settings: str = ""
    failed: str | None = None
    declined: str | None = None
    """What quickstart said where it opened nothing without `--anyway`."""
    forecast: tuple[float, float] | None = None
    """Between what quickstart expected the AUC of two classes, else the accuracy."""

    @property
    def key(self) -> tuple[object, ...]:
        """What is not run again."""
        return self.data, self.seed, self.epsilon, self.method, self.reading


Found = dict[str, Any]
Run = tuple[Sequence[Result], Callable[[], Sequence[Found]]]
"""How results begin, and what gives the rest of each."""
_RESULT = TypeAdapter(Result)


def spend(replaces: bool, reading: Reading, epsilon: float, delta: float) -> tuple[float, float]:
    """Return what a method may spend in its own sense.

    >>> spend(False, "ours", 2.0, 1e-5)[0]
    1.0
    """
    if replaces or reading != "ours":
        return epsilon, delta
    return epsilon / 2, delta / (1 + math.exp(epsilon / 2))


@dataclass(frozen=True, eq=False)
class Deal:
    """Data of one seed: files for the commands, and what peers may see of their rows."""

    name: str
    kind: Kind
    files: DealtFiles
    private: Dataset
    public: Dataset
    tested: Dataset
    columns: list[dict[str, Any]]
    raw: Sequence[NDArray[Any]]
    """Of the private, the public and the tested rows: columns or pixels as they are."""
    features: FeatureMap

    @property
    def delta(self) -> float:
        """What quickstart takes for so many people."""
        groups = self.private.groups
        return default_delta(len(self.private) if groups is None else len(np.unique(groups)))

    @property
    def task(self) -> Task:
        """What a student learns: the pool's rows."""
        private = self.private
        return Task(self.public.inputs, private.spec, private.classes, private.encoding)

    def mapped(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """Public features of inputs."""
        blocks = np.array_split(x, 1 + len(x) // BLOCK_ROWS)
        return np.concatenate([np.asarray(self.features(block)) for block in blocks])

    def save(self, path: Path, *, one_each: bool) -> None:
        """Write what `peers/run.py` reads, with one row of each person if that is wanted."""
        kept = np.arange(len(self.private))
        if one_each and self.private.groups is not None:
            order = np.random.default_rng(0).permutation(kept)
            kept = order[np.unique(self.private.groups[order], return_index=True)[1]]
        arrays = dict[str, Any]()
        parts = {"private": self.private, "public": self.public, "tested": self.tested}
        for (name, data), raw in zip(parts.items(), self.raw, strict=True):
            rows = kept if name == "private" else np.arange(len(data))
            x = data.inputs[rows]
            features = self.mapped(x)
            flat = x.reshape(len(x), -1).astype(np.float32) / data.spec.high
            arrays[f"{name}_features"] = features
            arrays[f"{name}_inputs"] = features if self.kind == "texts" else flat
            arrays[f"{name}_raw"] = raw[rows]
            if name != "tested":
                arrays[f"{name}_labels"] = data.labels[rows]
        about = {"classes": len(self.private.classes), "columns": self.columns}
        np.savez(path, about=np.array(json.dumps(about)), **arrays)


def deal(name: str, source: Source, seed: int, place: Path) -> Deal:
    """Deal data into files in `place`, and read them as peers get them."""
    dealt = source.deal(np.random.default_rng(seed))
    files, schema = dealt.write(name, place), None
    if isinstance(dealt, DealtTable):
        schema = propose_schema(files.pool, label=dealt.label, group=dealt.group).schema
    private, public, tested = files.read(schema)
    kind: Kind = "texts" if name in TEXTS else "pictures" if schema is None else "table"
    columns, raw = list[dict[str, Any]](), [part.inputs for part in (private, public, tested)]
    if kind == "table" and schema is not None:
        columns, raw = read_columns((files.private, files.pool, files.tested), schema)
    if kind == "texts":
        raw = [np.empty((len(part), 0)) for part in (private, public, tested)]
    width = TABLE_COORDINATES if kind == "table" else WIDTH
    features = public_features(public.spec, PublicData.declare("pool", public.inputs), width)
    return Deal(name, kind, files, private, public, tested, columns, raw, features)


def read_columns(
    paths: Sequence[Path], schema: TableSchema
) -> tuple[list[dict[str, Any]], list[NDArray[Any]]]:
    """Columns of tables as they are: numbers in the schema's range, and numbers of categories.

    What is missing is the middle of the range, as in Terrine; the categories are those of the
    second table, the public one, and −1 is every other.
    """
    tables = [pd.read_csv(path, dtype=str, keep_default_na=False) for path in paths]
    columns, raw = list[dict[str, Any]](), [list[NDArray[Any]]() for _ in tables]
    for column in schema.columns:
        if column.role not in FEATURE_ROLES:
            continue
        own = [table[column.name].str.strip() for table in tables]
        if column.low is not None and column.high is not None and column.role == "numeric":
            low, high = column.low, column.high
            columns.append({"name": column.name, "low": low, "high": high})
            for found, values in zip(raw, own, strict=True):
                numbers = pd.to_numeric(values, errors="coerce").fillna((low + high) / 2)
                found.append(numbers.clip(low, high).to_numpy(np.float64))
            continue
        known = sorted(set(own[1]))
        columns.append({"name": column.name, "values": len(known)})
        for found, values in zip(raw, own, strict=True):
            found.append(pd.Index(known).get_indexer(values).astype(np.float64))
    return columns, [np.column_stack(found) for found in raw]


def score(found: Predicted, labels: NDArray[np.int64]) -> Found:
    """What a result says of predictions."""
    rarest = int(np.bincount(labels).min())
    return {"tested": len(labels), "rarest": rarest, **asdict(found.scores(labels))}


def most_likely(shares: NDArray[Any]) -> Predicted:
    """Predictions by scores [T, classes]."""
    two = shares.shape[1] == 2
    return Predicted(shares.argmax(1), shares[:, 1] - shares[:, 0] if two else None)


def run_product(made: Deal, epsilon: float) -> Sequence[Found]:
    """Open a project by commands, and judge a student of what it says, then one of labels, too."""
    asked = ("--public", made.files.pool.name, *made.files.options, "--epsilon", f"{epsilon:g}")
    began = _children_seconds()
    opened = open_project(made.files.private, *asked, data=f"data-{epsilon:g}", anyway=True)
    common: Found = {"spent": (epsilon, made.delta)}
    if isinstance(opened, Refused):
        return [{**common, "failed": f"declined: {opened.said}"}] * len(COMMANDS)
    common["declined"] = opened.declined
    way = next(line for line in opened.said.splitlines() if line.startswith("By what"))
    common["settings"] = " ".join(way.split()[2:]).partition(":")[0]
    common["forecast"] = read_forecast(opened.said)
    opening, found = _children_seconds() - began, list[Found]()
    for options in ((), ("--labels", made.files.pool.name)):
        began = _children_seconds()
        try:
            with opened.serve():
                opened.train_student(*options)
        except CommandError as refused:  # labels of pictures, of which there are sums
            found.append({**common, "failed": f"refused: {refused}"})
            continue
        spent = opening + _children_seconds() - began
        said = opened.predict(made.files.tested, made.private.classes)
        found.append({**score(said, made.tested.labels), **common, "seconds": spent})
    return found


def read_forecast(said: str) -> tuple[float, float] | None:
    """Return between what quickstart expects the AUC of two classes, else the accuracy."""
    found = re.search(FORECAST, " ".join(said.split()))
    if found is None:
        return None
    right, auc = found.groups()[:2], found.groups()[2:]
    low, high = auc if all(auc) else (float(share) / 100 for share in right)
    return float(low), float(high)


def run_sums(made: Deal, epsilon: float, seed: int) -> Sequence[Found]:
    """Do by functions what the commands do of sums: release them, fit a student, and judge it."""
    private, tested, began = made.private, made.tested, time.process_time()
    noisy = release(private, made.public, epsilon, seed)
    known, seconds = time.process_time() - began, list[float]()
    bases: list[tuple[PublicModel | None, float]] = [(None, 0.0)]
    bases += [learn_labels(made)] if made.task.is_table else []
    students = list[Student]()
    for base, learning in bases:
        began = time.process_time()
        students.append(fit_sums(noisy, made.task, public=base))
        seconds.append(known + learning + time.process_time() - began)
    found = list[Found]()
    for student, spent in zip(students, seconds, strict=True):
        shares = student.probabilities(tested.inputs)
        second = shares[:, 1] if len(private.classes) == 2 else None
        scores = score(Predicted(student.predict_indices(tested.inputs), second), tested.labels)
        common = {"spent": (epsilon, made.delta), "settings": "sums", "seconds": spent}
        found.append({**scores, **common})
    return found


@cache
def learn_labels(made: Deal) -> tuple[PublicModel, float]:
    """A model of the pool's labels, once for every ε, and the seconds that it took."""
    began = time.process_time()
    labels = PublicLabels(made.public.inputs, made.public.labels)
    return fit_public(made.task, labels), time.process_time() - began


def _children_seconds() -> float:
    """Processor seconds of all commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_peer(
    name: str, made: Deal, spent: tuple[float, float], seed: int, peers: Path, *, one_each: bool
) -> Found:
    """Run a method in its environment; what it says where it fails is what failed."""
    dealt = made.files.pool.with_name(f"{'people' if one_each else 'rows'}-dealt.npz")
    if not dealt.exists():
        made.save(dealt, one_each=one_each)
    python = peers / PEERS[name].environment / "bin" / "python"
    out = dealt.with_name("said.npz")
    words = [python, HERE / "peers" / "run.py", name, dealt, "--out", out, "--seed", seed]
    words += ["--epsilon", spent[0], "--delta", spent[1]]
    try:
        done = subprocess.run(
            [str(word) for word in words],
            capture_output=True,
            text=True,
            check=False,
            cwd=dealt.parent,
            preexec_fn=partial(resource.setrlimit, resource.RLIMIT_CPU, (LIMIT_SECONDS,) * 2),
        )
    except OSError as error:
        return {"spent": spent, "failed": f"is not installed: {error}"}
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return {"spent": spent, "failed": f"took more than {LIMIT_SECONDS} s"}
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {"spent": spent, "failed": said[:300]}
    with np.load(out) as file:
        shares, about = file["scores"], json.loads(str(file["about"]))
    settings = json.dumps(about.pop("settings"))
    return {
        **score(most_likely(shares), made.tested.labels),
        **about,
        "spent": spent,
        "settings": settings,
    }


def run_plain(name: str, made: Deal, seed: int) -> Found:
    """Judge the largest class, or a model without privacy of private rows or of the pool's labels.

    Of boosting and regression, the one with less loss on held-out ones of the same rows.
    """
    if name == LARGEST:
        largest = np.bincount(made.private.labels).argmax()
        return score(Predicted(np.full(len(made.tested), largest)), made.tested.labels)
    data, at = (made.public, 1) if name == PUBLIC_ALONE else (made.private, 0)
    rows = np.random.default_rng(seed).permutation(len(data))[:NO_PRIVACY_ROWS]
    began, mapped = time.process_time(), made.mapped(data.inputs[rows])
    regression = LogisticRegression(max_iter=300)
    tried: list[tuple[Any, NDArray[Any], NDArray[Any]]] = [
        (regression, mapped, made.mapped(made.tested.inputs))
    ]
    if made.kind == "table":
        boosting = HistGradientBoostingClassifier(random_state=seed)
        tried.append((boosting, made.raw[at][rows], made.raw[2]))
    y = data.labels[rows]
    if len(tried) > 1:
        tried.sort(key=lambda each: loss_of(each[0], each[1], y))
    model, x, tested = tried[0]
    shares = np.zeros((len(tested), len(made.private.classes)))
    model.fit(x, y)
    shares[:, model.classes_] = model.predict_proba(tested)
    found = score(most_likely(shares), made.tested.labels)
    chosen = "regression" if model is regression else "boosting"
    return {**found, "settings": chosen, "seconds": time.process_time() - began}


def loss_of(model: Any, x: NDArray[Any], y: NDArray[np.int64]) -> float:
    """Return the logarithmic loss of a model of rows, on those that it did not see."""
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    losses = list[float]()
    for learned, held in folds.split(x, y):
        fitted = clone(model).fit(x[learned], y[learned])
        known = np.isin(y[held], fitted.classes_)
        shares = fitted.predict_proba(x[held][known])
        losses.append(log_loss(y[held][known], shares, labels=fitted.classes_))
    return float(np.mean(losses))


def runs(
    made: Deal, seed: int, epsilons: Sequence[float], peers: Path, *, in_process: bool = False
) -> Iterator[Run]:
    """Yield every run on these data: how its results begin, and what gives the rest."""
    for name in (PUBLIC_ALONE, NO_PRIVACY, LARGEST):
        yield (
            [Result(made.name, seed, None, name, "both")],
            partial(lambda *given: [run_plain(*given)], name, made, seed),
        )
    grouped = made.private.groups is not None
    for epsilon in epsilons:
        # Public labels join sums of tables alone.
        functions = FUNCTIONS if made.task.is_table else FUNCTIONS[:1]
        names = functions if in_process else COMMANDS
        begun = [Result(made.name, seed, epsilon, name, "both") for name in names]
        sums = partial(run_sums, made, epsilon, seed)
        yield begun, sums if in_process else partial(run_product, made, epsilon)
        for name, peer in PEERS.items():
            if made.kind not in peer.kinds or (peer.two_classes and len(made.private.classes) > 2):
                continue
            readings: tuple[Reading, ...] = ("own", "ours")
            for reading in ("both",) if peer.replaces and not grouped else readings:
                spent = spend(peer.replaces, reading, epsilon, made.delta)
                one_each = grouped and reading == "ours"
                run = partial(run_peer, name, made, spent, seed, peers, one_each=one_each)
                yield (
                    [Result(made.name, seed, epsilon, name, reading)],
                    partial(lambda run: [run()], run),
                )


def read_results(path: Path) -> list[Result]:
    """Return what earlier runs wrote."""
    if not path.exists():
        return []
    return [_RESULT.validate_json(line) for line in path.read_text(encoding="utf-8").splitlines()]


def summarize(results: Sequence[Result]) -> pd.DataFrame:
    """Means over seeds by data, ε, method and reading, and by how much each may be off.

    That is two standard errors: of the tested rows, or of a mean of so many seeds if that is more.
    Of an AUC, the former is at most that of a share of the rarer class (Birnbaum and Klose, Ann.
    Math. Stat. 1957).
    """
    groups = rank(results).groupby(["data", "epsilon", "method", "reading"])
    means = groups[["accuracy", "balanced", "auc", "main", "seconds"]].mean()
    for name, rows in (("accuracy", "tested"), ("auc", "rarest")):
        variance = means[name] * (1 - means[name]) / groups[rows].sum()
        means[f"{name}_off"] = 2 * np.fmax(variance**0.5, groups[name].sem())
    return means.assign(failed=groups["failed"].first(), seeds=groups["main"].count()).reset_index()


def rank(results: Sequence[Result]) -> pd.DataFrame:
    """Results as a frame, of which `main` is what ranks: the AUC of two classes, else accuracy."""
    frame = pd.DataFrame([asdict(each) for each in results]).fillna({"epsilon": NO_EPSILON})
    numbers = ["accuracy", "balanced", "auc", "seconds", "tested", "rarest"]
    frame[numbers] = frame[numbers].astype(float)
    frame["seconds"] = frame["seconds"].where(frame["seconds"] > 0)  # of what failed
    return frame.assign(main=frame["auc"].fillna(frame["accuracy"]))


def cell(row: Any) -> str:
    """Accuracy; balanced accuracy; AUC."""
    if np.isnan(row.accuracy):
        return str(row.failed).partition(":")[0]
    said = f"{100 * row.accuracy:.1f} ± {100 * row.accuracy_off:.1f}; {100 * row.balanced:.1f}"
    return said if np.isnan(row.auc) else f"{said}; {row.auc:.3f} ± {row.auc_off:.3f}"


def standing(ranked: pd.DataFrame, name: str) -> str:
    """Say by how many points the product is ahead of the best other at one ε, in our sense.

    On the seeds that both have, with two standard errors of three or more. Those who learn from
    the pool's labels stand beside the student that does.
    """
    allowed = [each for each, peer in PEERS.items() if name.endswith("labels") or not peer.labels]
    fair = ranked[ranked["method"].isin([name, *allowed]) & (ranked["reading"] != "own")]
    seeds = fair.pivot_table(index="seed", columns="method", values="main")
    if name not in seeds:
        return ""
    ahead = 100 * seeds.drop(columns=name).rsub(seeds[name], axis=0)
    if not ahead.count().any():
        return ""
    best = ahead.mean().idxmin()
    points, count = ahead[best].mean(), ahead[best].count()
    off = f" ± {2 * ahead[best].sem():.1f}" if count >= LEAST_SEEDS else ""
    return f"**{points:+.1f}**{off} ({PEERS[best].title}, {count})"


def forecast_cell(result: Result) -> str:
    """Say what quickstart chose and expected, what came of it, and whether it was to be asked."""
    low, high = result.forecast or (0.0, 1.0)
    came = result.accuracy if result.auc is None else result.auc
    said = f"{result.settings}: {low:.3g} to {high:.3g}, had {came:.3f}"
    return f"{said}; `--anyway`" if result.declined else said


def page_lines(results: Sequence[Result]) -> Iterator[str]:
    """Yield the generated part of the page: who is first, then a table for each set."""
    means, ranked = summarize(results), rank(results)
    heads = [f"ε = {epsilon:g}" for epsilon in EPSILONS]
    sets = dict.fromkeys(each.data for each in results)
    of_sets = {data: means[means["data"] == data] for data in sets}
    for name, title in PRODUCTS.items():
        first = [
            [data, *(standing(own[own["epsilon"] == each], name) for each in EPSILONS)]
            for data, own in ranked.groupby("data", sort=False)
        ]
        first = [row for row in first if any(row[1:])]
        if first:
            yield from (table([title, *heads], first), "")
    told = [each for each in results if each.forecast and each.method == PRODUCT]
    # Of several seeds the first.
    said = {(each.data, each.epsilon): forecast_cell(each) for each in reversed(told)}
    if said:
        rows = [[data, *(said.get((data, each), "") for each in EPSILONS)] for data in sets]
        rows = [row for row in rows if any(row[1:])]
        yield table(["**What quickstart chose and expected, and what came**", *heads], rows)
    for data, own in of_sets.items():
        epsilons = [each for each in sorted(own["epsilon"].unique()) if each != NO_EPSILON]
        delta = max(each.spent[1] for each in results if each.data == data)
        plain = own[own["epsilon"] == NO_EPSILON].itertuples()
        without = "; ".join(f"{row.method}: {cell(row)}" for row in plain)
        yield from ("", f"### {data}", "", f"δ = {delta:g}. {without}.", "")
        seconds = own[own["method"] == PRODUCT].set_index("epsilon")["seconds"].dropna()
        lines = []
        for method, reading in itertools.product((*PRODUCTS, *PEERS), ("both", "ours", "own")):
            rows = own[(own["method"] == method) & (own["reading"] == reading)]
            if rows.empty:
                continue
            cells = {row.epsilon: cell(row) for row in rows.itertuples()}
            ratio = (rows.set_index("epsilon")["seconds"] / seconds).median()
            median = rows["seconds"].median()
            took = "" if np.isnan(median) else f"{median:.1f} s"
            took += "" if np.isnan(ratio) else f", × {ratio:.2g}"
            title = PEERS[method].title if method in PEERS else PRODUCTS[method]
            title += ", *in its own sense*" if reading == "own" else ""
            fewest, most = rows["seeds"].min(), rows["seeds"].max()
            count = f"{most}" if fewest == most else f"{fewest} to {most}"
            lines.append([title, *(cells.get(each, "") for each in epsilons), count, took])
        yield table(["", *(f"ε = {each:g}" for each in epsilons), "seeds", "processor"], lines)


def draw(results: Sequence[Result], path: Path) -> None:
    """Draw one panel for each set: AUC or accuracy against ε, in our sense."""
    means = summarize([each for each in results if each.reading != "own"])
    means, panels = means.dropna(subset="main"), list[Panel]()
    for data in dict.fromkeys(each.data for each in results):
        own, curves = means[means["data"] == data], list[Curve]()
        ranked = own[own["method"].isin([*PRODUCTS, *PEERS])]
        if ranked.empty:
            continue
        for colour, method in enumerate((*PRODUCTS, *PEERS)):
            if (rows := ranked[ranked["method"] == method]).empty:
                continue
            ours = method in PRODUCTS
            title = PRODUCTS[method].strip("*") if ours else PEERS[method].title
            style = "o-" if ours else "x--" if colour < len(COLOURS) else "^:"
            curves.append(Curve(title, rows["epsilon"], rows["main"], style, colour))
        what = "AUC" if ranked["auc"].notna().any() else "accuracy"
        lowest = max(ranked["main"].min(), ranked["main"].max() - SHOWN)
        panels.append(Panel(data, "ε", what, curves, log_x=True, lowest=lowest - 0.01))
    if panels:
        draw_panels(panels, path, size=(3.2, 2.8), legend_below=True)


def write_page(results: Sequence[Result], page: Path) -> None:
    """Write the results into the page, between its marks, and the picture beside it."""
    known = page.read_text(encoding="utf-8") if page.exists() else ""
    before, _, rest = known.partition(BEGIN)
    after = rest.partition(END)[2]
    block = "\n".join(page_lines(results))
    page.write_text(f"{before}{BEGIN}\n\n{block}\n\n{END}{after}", encoding="utf-8")
    draw(results, page.with_suffix(".png"))


def main() -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("data", nargs="*", help="NAME or NAME=PATH, as datasets.py lists them")
    parser.add_argument("--peers", type=Path, default=HERE.parent / "build" / "board")
    parser.add_argument("--epsilon", type=lambda text: tuple(map(float, text.split(","))))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", type=lambda text: text.split(","), help="no others")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--in-process", action="store_true", help="sums by functions, no commands")
    parser.add_argument("--page", action="store_true", help="write the page alone")
    given = parser.parse_args()
    known = {result.key for result in read_results(given.results)}
    if not given.data and not given.page:
        print("Skipped: no data was given. See the top of benchmarks/board.py.")
        return
    sources, peers = find_sources(given.data), given.peers.resolve()
    how = {"in_process": given.in_process}
    for seed in range(0 if given.page else given.seeds):
        for name, source in sources.items():
            with tempfile.TemporaryDirectory(prefix="board-") as place:
                made = deal(name, source, seed, Path(place))
                for begun, run in runs(made, seed, given.epsilon or EPSILONS, peers, **how):
                    wanted = [not given.methods or each.method in given.methods for each in begun]
                    if not any(wanted) or all(each.key in known for each in begun):
                        continue
                    try:
                        found = run()
                    except Exception as error:  # one method's failure must not end all others
                        failed = {"failed": f"{type(error).__name__}: {error}"[:500]}
                        found = [failed] * len(begun)
                    for each, rest in zip(begun, found, strict=True):
                        line = json.dumps(asdict(replace(each, **rest)), ensure_ascii=False)
                        with given.results.open("a", encoding="utf-8") as file:
                            file.write(line + "\n")
                        print(line, flush=True)
    write_page(read_results(given.results), given.results.with_suffix(".md"))


if __name__ == "__main__":
    main()
