"""What a user could take instead of Terrine, each as its documentation has it, and tuned a little.

`board.py` runs this file in the environment that has the peers; it imports nothing of Terrine.

    python benchmarks/peers/run.py NAME DEALT.npz --epsilon 1 --delta 1e-5 --seed 0 --out SAID.npz

Settings are chosen on labelled public rows alone: half of them stand in for the private rows, under
noise that is as large beside them as the real noise is beside the private ones, and the other half
judges. The settings of the package's own tutorial are always among those that are tried.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]
Settings = Mapping[str, Any]
MOST_BINS = 16
"""Of a column of numbers, at the quantiles of public rows, for synthetic records."""
MOST_BOOSTED = 200
"""Features of an input from which boosting is not tried."""
CLIPPED = 0.95
"""Share of the public rows that are shorter than the length to which rows are clipped."""


@dataclass(frozen=True, eq=False)
class Part:
    """Rows: encoded columns, what the public map makes of them, columns or pixels as they are.

    `inputs` [N, d] and `features` [N, e]; `raw` [N, C], where a category is its number, or −1, or
    uint8 [N, H, W]; `labels` [N], empty of the tested rows.
    """

    inputs: Floats
    features: Floats
    raw: NDArray[Any]
    labels: Ints

    def __len__(self) -> int:
        return len(self.raw)

    def at(self, rows: NDArray[Any]) -> Part:
        """Some of them."""
        return Part(self.inputs[rows], self.features[rows], self.raw[rows], self.labels[rows])


@dataclass(frozen=True, eq=False)
class Task:
    """What a method may use. `ratio`: how many private rows there really are for each here."""

    private: Part
    public: Part
    tested: Part
    classes: int
    columns: Sequence[Mapping[str, Any]]
    """Of a table: `name`, and `low` and `high` or the number of its `values`."""
    epsilon: float
    delta: float
    seed: int
    ratio: float = 1.0

    def rehearsal(self) -> Task:
        """The same on public rows: half of them for the private ones, the other half to test."""
        order = np.random.default_rng(self.seed).permutation(len(self.public))
        private, tested = (self.public.at(rows) for rows in np.array_split(order, 2))
        ratio = len(self.private) / len(private)
        return replace(self, private=private, tested=tested, ratio=ratio)


Method = Callable[[Task, Settings], Floats]
"""Scores [T, classes] of the tested rows, of which the largest is what it says."""


def judge(scores: Floats, labels: Ints) -> float:
    """Return the accuracy; of two classes, its mean with the AUC."""
    right = float((scores.argmax(1) == labels).mean())
    if scores.shape[1] != 2 or len(np.unique(labels)) < 2:
        return right
    return (right + float(roc_auc_score(labels, scores[:, 1] - scores[:, 0]))) / 2


def tune(method: Method, task: Task, grid: Sequence[Settings]) -> Settings:
    """Return the settings that do best on public rows."""
    rehearsal, best = task.rehearsal(), (-1.0, grid[0])
    for settings in grid if len(grid) > 1 else ():
        try:
            found = judge(method(rehearsal, settings), rehearsal.tested.labels)
        except ValueError:  # such as too few rows for so many trees: not a setting to choose
            continue
        best = max(best, (found, settings), key=lambda pair: pair[0])
    return best[1]


def _scaled(task: Task, kind: str) -> tuple[Floats, Floats]:
    """Private and tested rows around the public mean, most of them of length at most 1."""
    public, private, tested = (
        getattr(part, kind) for part in (task.public, task.private, task.tested)
    )
    middle = public.mean(0)
    length = max(float(np.quantile(np.linalg.norm(public - middle, axis=1), CLIPPED)), 1e-9)
    return (private - middle) / length, (tested - middle) / length


def diffprivlib_logistic(task: Task, settings: Settings) -> Floats:
    """Objective perturbation; of more than two classes, one against the rest."""
    from diffprivlib.models import LogisticRegression as Private

    x, tested = _scaled(task, settings["rows"])
    model = Private(
        epsilon=task.epsilon * task.ratio,
        data_norm=1.0,
        C=settings["C"] * task.ratio,
        max_iter=500,
        random_state=task.seed,
    )
    return _spread(model.fit(x, task.private.labels), tested, task.classes)


def diffprivlib_forest(task: Task, settings: Settings) -> Floats:
    """Random trees with private leaves; bounds are what public rows span."""
    from diffprivlib.models import RandomForestClassifier

    public = getattr(task.public, settings["rows"])
    low, high = public.min(0), public.max(0)
    model = RandomForestClassifier(
        n_estimators=settings["trees"],
        max_depth=settings["depth"],
        epsilon=task.epsilon * task.ratio,
        bounds=(low, np.where(high > low, high, low + 1)),
        classes=list(range(task.classes)),
        shuffle=True,
        random_state=task.seed,
    )
    model.fit(getattr(task.private, settings["rows"]), task.private.labels)
    return _spread(model, getattr(task.tested, settings["rows"]), task.classes)


def dp_ebm(task: Task, settings: Settings) -> Floats:
    """A boosting machine of one column at a time (Nori et al., ICML 2021). Of two classes."""
    from interpret.privacy import DPExplainableBoostingClassifier

    types, bounds = [], {}
    for number, column in enumerate(task.columns):
        types.append("continuous" if "low" in column else "nominal")
        if "low" in column:
            bounds[number] = (column["low"], column["high"])
    rows = _mixed(task.private.raw, types), _mixed(task.tested.raw, types)
    model = DPExplainableBoostingClassifier(
        feature_names=[f"c{number}" for number in range(len(types))],
        feature_types=types,
        privacy_bounds={f"c{number}": each for number, each in bounds.items()},
        epsilon=task.epsilon * task.ratio,
        delta=task.delta,
        max_rounds=settings["rounds"],
        max_bins=settings["bins"],
        learning_rate=settings["rate"],
        n_jobs=1,
        random_state=task.seed,
    )
    return np.asarray(model.fit(rows[0], task.private.labels).predict_proba(rows[1]))


def _mixed(raw: NDArray[Any], types: Sequence[str]) -> NDArray[Any]:
    """Columns as a boosting machine wants them: numbers, and names of categories."""
    found = np.empty(raw.shape, dtype=object)
    for number, kind in enumerate(types):
        own = raw[:, number]
        found[:, number] = own if kind == "continuous" else [f"v{int(each)}" for each in own]
    return found


def opacus_features(task: Task, settings: Settings) -> Floats:
    """DP-SGD of a linear model, or of one hidden layer, on public features."""
    import torch

    x, tested = _scaled(task, settings["rows"])
    hidden = settings["hidden"]
    torch.manual_seed(task.seed)
    last = torch.nn.Linear(hidden or x.shape[1], task.classes)
    first = [torch.nn.Linear(x.shape[1], hidden), torch.nn.Tanh()] if hidden else []
    if not hidden:
        torch.nn.init.zeros_(last.weight)
    return _dp_sgd(torch.nn.Sequential(*first, last), x, tested, task, settings)


def opacus_network(task: Task, settings: Settings) -> Floats:
    """DP-SGD of the network of Opacus's MNIST example, with tanh (Papernot et al., AAAI 2021)."""
    import torch

    torch.manual_seed(task.seed)
    pixels = task.private.raw.shape[1]
    before = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 8, 2, padding=3),
        torch.nn.Tanh(),
        torch.nn.MaxPool2d(2, 1),
        torch.nn.Conv2d(16, 32, 4, 2),
        torch.nn.Tanh(),
        torch.nn.MaxPool2d(2, 1),
        torch.nn.Flatten(),
    )
    width = before(torch.zeros(1, 1, pixels, pixels)).shape[1]
    after = (torch.nn.Linear(width, 32), torch.nn.Tanh(), torch.nn.Linear(32, task.classes))
    rows = [part.raw[:, None].astype(np.float32) / 255 for part in (task.private, task.tested)]
    return _dp_sgd(torch.nn.Sequential(*before, *after), rows[0], rows[1], task, settings)


def _dp_sgd(model: Any, x: Floats, tested: Floats, task: Task, settings: Settings) -> Floats:
    """Train by Opacus, of which a batch is so large a share of the rows, and score tested rows."""
    import torch
    from opacus import PrivacyEngine
    from opacus.accountants.utils import get_noise_multiplier

    epochs, share = settings["epochs"], settings["share"]
    sigma = get_noise_multiplier(
        target_epsilon=task.epsilon,
        target_delta=task.delta,
        sample_rate=share,
        steps=round(epochs / share),
        accountant="prv",
        epsilon_tolerance=task.epsilon / 100,
    )
    labels = torch.from_numpy(task.private.labels)
    rows = torch.utils.data.TensorDataset(torch.from_numpy(x.astype(np.float32)), labels)
    loader = torch.utils.data.DataLoader(rows, batch_size=max(1, round(share * len(rows))))
    optimizer = torch.optim.SGD(model.parameters(), lr=settings["rate"], momentum=0.9)
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=sigma / task.ratio,
        max_grad_norm=settings["clip"],
    )
    for _ in range(epochs):
        for batch, own in loader:
            optimizer.zero_grad()
            torch.autograd.backward(torch.nn.functional.cross_entropy(model(batch), own))
            optimizer.step()
    with torch.no_grad():
        blocks = torch.split(torch.from_numpy(tested.astype(np.float32)), 1000)
        return torch.cat([model(block).softmax(1) for block in blocks]).numpy()


def synthetic_records(task: Task, settings: Settings) -> Floats:
    """Records drawn by MST (McKenna et al., JPC 2021), and the better of two models on them."""
    import pandas as pd
    from snsynth.mst import MSTSynthesizer
    from snsynth.transform import LabelTransformer
    from snsynth.transform.table import TableTransformer

    cuts = [_cuts(task.public.raw[:, n], column) for n, column in enumerate(task.columns)]
    sizes = [*(len(each) + 1 for each in cuts), task.classes]
    coded = [_coded(part.raw, cuts) for part in (task.private, task.public, task.tested)]
    names = [f"c{number}" for number in range(len(sizes))]
    # All that a row may hold, so that nothing is read of the private ones.
    domain = pd.DataFrame({n: np.arange(max(sizes)) % size for n, size in zip(names, sizes)})  # noqa: B905
    transformer = TableTransformer([LabelTransformer(nullable=False) for _ in sizes])
    transformer.fit(domain)
    private = pd.DataFrame(np.column_stack([coded[0], task.private.labels]), columns=names)
    np.random.seed(task.seed)
    made = MSTSynthesizer(epsilon=task.epsilon, delta=task.delta)
    made.fit(private, transformer=transformer)
    drawn = pd.DataFrame(made.sample(len(private)), columns=names).to_numpy(np.int64)
    x, y = drawn[:, :-1], drawn[:, -1]
    if len(np.unique(y)) < 2:
        return np.tile(np.bincount(y, minlength=task.classes) / len(y), (len(task.tested), 1))
    logistic = (LogisticRegression(max_iter=500), lambda rows: _one_hot(rows, sizes[:-1]))
    boosted = (HistGradientBoostingClassifier(max_iter=100, random_state=0), lambda rows: rows)
    best: tuple[float, Floats] | None = None
    for model, encode in (logistic, boosted):
        model.fit(encode(x), y)
        found = judge(_spread(model, encode(coded[1]), task.classes), task.public.labels)
        if best is None or found > best[0]:
            best = found, _spread(model, encode(coded[2]), task.classes)
    assert best is not None
    return best[1]


def _cuts(public: NDArray[Any], column: Mapping[str, Any]) -> Floats:
    """Where a column is cut: numbers at public quantiles, categories between their numbers."""
    if "low" not in column:
        return np.arange(column["values"]) - 0.5
    return np.unique(np.quantile(public, np.arange(1, MOST_BINS) / MOST_BINS))


def _coded(raw: NDArray[Any], cuts: Sequence[Floats]) -> Ints:
    coded = [np.searchsorted(each, raw[:, n], side="right") for n, each in enumerate(cuts)]
    return np.column_stack(coded).astype(np.int64)


def _one_hot(rows: Ints, sizes: Sequence[int]) -> Floats:
    return np.concatenate([np.eye(size)[rows[:, n]] for n, size in enumerate(sizes)], axis=1)


def plain_pate(task: Task, settings: Settings) -> Floats:
    """Noisy votes of logistic regressions for so many public rows, and a student of the winners.

    GNMax (Papernot et al., ICLR 2018) at its worst-case cost, as dp-accounting composes it: who
    replaces one record changes one vote, so counts by √2.
    """
    from dp_accounting import GaussianDpEvent, SelfComposedDpEvent, calibrate_dp_mechanism
    from dp_accounting.rdp import RdpAccountant

    asked = min(settings["asked"], len(task.public))

    def composed(sigma: float) -> Any:
        return SelfComposedDpEvent(GaussianDpEvent(sigma / math.sqrt(2)), asked)

    sigma = calibrate_dp_mechanism(RdpAccountant, composed, task.epsilon, task.delta)
    random = np.random.default_rng(task.seed)
    teachers = max(2, round(settings["teachers"] / task.ratio))
    x, rows = task.private.features, random.permutation(len(task.private))
    pool = task.public.features[random.permutation(len(task.public))[:asked]]
    counts = np.zeros((asked, task.classes))
    for own in np.array_split(rows, teachers):
        y = task.private.labels[own]
        known = np.unique(y)
        model = None if len(known) < 2 else LogisticRegression(max_iter=200).fit(x[own], y)
        said = np.full(asked, known[0]) if model is None else model.predict(pool)
        counts[np.arange(asked), said] += 1
    answers = (counts + random.normal(0, sigma / task.ratio, counts.shape)).argmax(1)
    if len(np.unique(answers)) < 2:
        return np.tile(np.eye(task.classes)[answers[0]], (len(task.tested), 1))
    student = LogisticRegression(max_iter=500).fit(pool, answers)
    return _spread(student, task.tested.features, task.classes)


def _spread(model: Any, rows: Floats, classes: int) -> Floats:
    """Probabilities [T, classes] of a model that may not know all classes."""
    found = np.zeros((len(rows), classes))
    found[:, np.asarray(model.classes_, dtype=np.int64)] = model.predict_proba(rows)
    return found


_FEATURES: tuple[Settings, ...] = tuple(
    {"rows": rows, "hidden": hidden, "rate": rate, "epochs": epochs, "share": share, "clip": 1.0}
    for rows, hidden, rate, epochs, share in (
        ("features", 0, 0.5, 20, 0.05),
        ("features", 0, 2.0, 20, 0.05),
        ("features", 0, 2.0, 20, 0.2),
        ("features", 0, 8.0, 20, 0.2),
        ("inputs", 0, 2.0, 20, 0.05),
        ("features", 64, 0.5, 20, 0.05),
    )
)
_NETWORK: tuple[Settings, ...] = tuple(
    {"rate": rate, "epochs": epochs, "share": share, "clip": clip}
    for rate, epochs, share, clip in ((0.1, 10, 0.01, 1.0), (0.5, 10, 0.02, 0.3))
)
METHODS: dict[str, tuple[Method, tuple[Settings, ...]]] = {
    "diffprivlib-logistic": (
        diffprivlib_logistic,
        tuple({"rows": rows, "C": c} for rows in ("inputs", "features") for c in (1.0, 0.01)),
    ),
    "diffprivlib-forest": (
        diffprivlib_forest,
        tuple(
            {"rows": rows, "trees": trees, "depth": depth}
            for rows, trees, depth in (
                ("raw", 10, 5),
                ("raw", 10, 10),
                ("raw", 50, 8),
                ("raw", 30, 5),
                ("inputs", 10, 5),
            )
        ),
    ),
    "dp-ebm": (
        dp_ebm,
        (
            {"rounds": 300, "bins": 32, "rate": 0.01},
            {"rounds": 100, "bins": 32, "rate": 0.02},
            {"rounds": 30, "bins": 16, "rate": 0.1},
        ),
    ),
    "opacus-features": (opacus_features, _FEATURES),
    "opacus-network": (opacus_network, _NETWORK),
    "synthetic-mst": (synthetic_records, ({},)),
    "plain-pate": (
        plain_pate,
        tuple(
            {"teachers": teachers, "asked": asked}
            for teachers in (100, 250, 1000)
            for asked in (100, 1000)
        ),
    ),
}
"""By name: the method, and settings of which the first are those of its documentation."""


def load(path: Path, epsilon: float, delta: float, seed: int) -> Task:
    """Read what `board.py` dealt."""
    with np.load(path) as file:
        nothing = np.empty(0, np.int64)
        parts = [
            Part(
                file[f"{name}_inputs"],
                file[f"{name}_features"],
                file[f"{name}_raw"],
                file.get(f"{name}_labels", nothing),
            )
            for name in ("private", "public", "tested")
        ]
        about = json.loads(str(file["about"]))
    classes, columns = about["classes"], about["columns"]
    return Task(parts[0], parts[1], parts[2], classes, columns, epsilon, delta, seed)


def main() -> None:
    """Tune, train on the private rows, and write what is said of the tested ones."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("name", choices=METHODS)
    parser.add_argument("dealt", type=Path)
    for name, kind in (("epsilon", float), ("delta", float), ("seed", int), ("out", Path)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    task = load(given.dealt, given.epsilon, given.delta, given.seed)
    method, grid = METHODS[given.name]
    began = time.process_time()
    settings = tune(method, task, grid)
    chosen = time.process_time()
    scores = method(task, settings)
    about = {
        "settings": dict(settings),
        "tuning_seconds": chosen - began,
        "seconds": time.process_time() - chosen,
    }
    np.savez(given.out, scores=scores, about=np.array(json.dumps(about)))


if __name__ == "__main__":
    main()
