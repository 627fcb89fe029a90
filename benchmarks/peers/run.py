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
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_selection import SelectKBest, f_classif
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
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
UNKNOWN_CLASS = -5.0
"""Bias of a class that no public row has."""
MODEL_MEGABYTES = 1
"""Of AIM's model of the records, at most."""


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

    def rehearsal(self, draw: int = 0, *, warm: bool = False) -> Task:
        """The same on public rows: half of them for the private ones, the other half to test.

        warm: where labels of public rows are learned from, too; a third each, and these are what
        is public then.
        """
        random = np.random.default_rng((self.seed, draw) if draw else self.seed)
        parts = np.array_split(random.permutation(len(self.public)), 3 if warm else 2)
        private, tested, *rest = (self.public.at(rows) for rows in parts)
        ratio = len(self.private) / len(private)
        public = rest[0] if warm else self.public
        seed = self.seed + draw
        return replace(self, private=private, tested=tested, public=public, ratio=ratio, seed=seed)


Method = Callable[[Task, Settings], Floats]
"""Scores [T, classes] of the tested rows, of which the largest is what it says."""


def judge(scores: Floats, labels: Ints) -> float:
    """Return the accuracy; of two classes, its mean with the AUC."""
    right = float((scores.argmax(1) == labels).mean())
    if scores.shape[1] != 2 or len(np.unique(labels)) < 2:
        return right
    return (right + float(roc_auc_score(labels, scores[:, 1] - scores[:, 0]))) / 2


def tune(peer: Peer, task: Task) -> Settings:
    """Return the settings that do best on public rows, in the mean of the peer's rehearsals."""
    rehearsals = [task.rehearsal(draw, warm=peer.warm) for draw in range(peer.rehearsals)]
    best = (-1.0, peer.grid[0])
    for settings in peer.grid if len(peer.grid) > 1 else ():
        try:
            found = [judge(peer.method(each, settings), each.tested.labels) for each in rehearsals]
        except ValueError:  # such as too few rows for so many trees: not a setting to choose
            continue
        best = max(best, (float(np.mean(found)), settings), key=lambda pair: pair[0])
    return best[1]


def _scaled(task: Task, kind: str) -> tuple[Floats, Floats, Floats]:
    """Private, tested and public rows around the public mean, most of length at most 1."""
    public, private, tested = _rows(task, kind)
    middle = public.mean(0)
    length = max(float(np.quantile(np.linalg.norm(public - middle, axis=1), CLIPPED)), 1e-9)
    return (private - middle) / length, (tested - middle) / length, (public - middle) / length


def _rows(task: Task, kind: str) -> tuple[Floats, Floats, Floats]:
    """Public, private and tested rows of a kind.

    `inputs` or `features`; `whitened-N`: the N main directions of the public rows' features, each
    of variance 1 there; `chosen-N`: the N features that tell the public labels apart best.
    """
    parts = (task.public, task.private, task.tested)
    name, _, width = kind.partition("-")
    if not width:
        public, private, tested = (getattr(part, kind) for part in parts)
        return public, private, tested
    model: Any
    if name == "whitened":
        most = min(int(width), *task.public.features.shape)
        model = PCA(most, whiten=True, svd_solver="full").fit(task.public.features)
    else:
        most = min(int(width), task.public.features.shape[1])
        model = SelectKBest(f_classif, k=most).fit(task.public.features, task.public.labels)
    public, private, tested = (model.transform(part.features) for part in parts)
    return public, private, tested


def diffprivlib_logistic(task: Task, settings: Settings) -> Floats:
    """Objective perturbation; of more than two classes, one against the rest."""
    from diffprivlib.models import LogisticRegression as Private

    x, tested, _ = _scaled(task, settings["rows"])
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

    x, tested, _ = _scaled(task, settings["rows"])
    hidden = settings["hidden"]
    torch.manual_seed(task.seed)
    last = torch.nn.Linear(hidden or x.shape[1], task.classes)
    first = [torch.nn.Linear(x.shape[1], hidden), torch.nn.Tanh()] if hidden else []
    if not hidden:
        torch.nn.init.zeros_(last.weight)
    return _dp_sgd(torch.nn.Sequential(*first, last), x, tested, task, settings)


def opacus_warm(task: Task, settings: Settings) -> Floats:
    """DP-SGD of a linear model that begins with what the labels of the public rows teach."""
    import torch

    x, tested, public = _scaled(task, settings["rows"])
    # As strong as public rows themselves ask for, which costs no privacy.
    fitted = LogisticRegressionCV(Cs=np.logspace(-1, 4, 6), cv=3, max_iter=300)
    fitted.fit(public, task.public.labels)
    own = np.atleast_2d(np.column_stack([fitted.coef_, fitted.intercept_]))
    own = np.concatenate([-own, own]) / 2 if len(own) == 1 else own
    last = torch.nn.Linear(x.shape[1], task.classes)
    with torch.no_grad():
        last.weight.zero_()
        last.bias.fill_(UNKNOWN_CLASS)
        last.weight[fitted.classes_] = torch.from_numpy(own[:, :-1].astype(np.float32))
        last.bias[fitted.classes_] = torch.from_numpy(own[:, -1].astype(np.float32))
    torch.manual_seed(task.seed)
    return _dp_sgd(torch.nn.Sequential(last), x, tested, task, settings)


def noisy_products(task: Task, settings: Settings) -> Floats:
    """Ridge regression of the classes: noisy X'y of the private rows, X'X of the public ones.

    Sufficient statistics are perturbed (Foulds et al., UAI 2016; Wang, UAI 2018), and the one that
    needs no labels is that of public rows (as in arXiv 2508.18037, which whitens by it). Who
    replaces a record moves X'y by at most twice the longest row, whatever its class; the Gaussian
    noise is that which dp-accounting gives.
    """
    x, tested, public = _scaled(task, settings["rows"])
    x, tested, public = (
        rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1)
        for rows in (x, tested, public)
    )
    multiplier = _gaussian_multiplier(task.epsilon, task.delta)
    targets, own = (_targets(part.labels, task.classes) for part in (task.private, task.public))
    products = x.T @ targets
    noise = np.random.default_rng(task.seed).normal(0, 2 * multiplier / task.ratio, products.shape)
    products = (products + noise) / len(x)
    covariance = public.T @ public / len(public)
    strength = settings["ridge"] * np.trace(covariance) / len(covariance)
    beta = np.linalg.solve(covariance + strength * np.eye(len(covariance)), products)
    scores = tested @ beta + own.mean(0)
    return np.concatenate([-scores, scores], axis=1) if task.classes == 2 else scores


@cache
def _gaussian_multiplier(epsilon: float, delta: float) -> float:
    """Standard deviation of noise for a sensitivity of 1."""
    from dp_accounting import GaussianDpEvent, calibrate_dp_mechanism
    from dp_accounting.pld import PLDAccountant

    return float(calibrate_dp_mechanism(PLDAccountant, GaussianDpEvent, epsilon, delta, tol=1e-3))


def _targets(labels: Ints, classes: int) -> Floats:
    """Of two classes −1 and 1 [N, 1]; of more, a column for each [N, classes]."""
    return 2.0 * (labels[:, None] == 1) - 1 if classes == 2 else np.eye(classes)[labels]


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


def mst_records(task: Task, settings: Settings) -> Floats:
    """Records drawn by MST (McKenna et al., JPC 2021)."""
    from snsynth.mst import MSTSynthesizer

    return _of_records(task, MSTSynthesizer(epsilon=task.epsilon, delta=task.delta))


def aim_records(task: Task, settings: Settings) -> Floats:
    """Records drawn by AIM (McKenna et al., PVLDB 2022), with a cap on the size of its model."""
    from snsynth.aim import AIMSynthesizer

    synthesizer = AIMSynthesizer(
        epsilon=task.epsilon, delta=task.delta, max_model_size=MODEL_MEGABYTES
    )
    return _of_records(task, synthesizer)


def _of_records(task: Task, synthesizer: Any) -> Floats:
    """Draw records, and score tested rows by the better of two models on them."""
    import pandas as pd
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
    synthesizer.fit(private, transformer=transformer)
    drawn = pd.DataFrame(synthesizer.sample(len(private)), columns=names).to_numpy(np.int64)
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
_SHORT = tuple(f"{name}-{width}" for name in ("whitened", "chosen") for width in (8, 16, 32))


@dataclass(frozen=True)
class Peer:
    """A method, and settings of which the first are those of its documentation."""

    method: Method
    grid: tuple[Settings, ...] = ({},)
    rehearsals: int = 1
    """Over which settings are judged: noise alone should not choose."""
    warm: bool = False
    """Whether it learns from labels of public rows."""


METHODS: dict[str, Peer] = {
    "diffprivlib-logistic": Peer(
        diffprivlib_logistic,
        tuple(
            {"rows": rows, "C": c}
            for rows in ("inputs", "features", *_SHORT)
            for c in (1.0, 0.1, 0.01)
        ),
        rehearsals=4,
    ),
    "diffprivlib-forest": Peer(
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
    "dp-ebm": Peer(
        dp_ebm,
        tuple(
            {"rounds": rounds, "bins": bins, "rate": rate}
            for rounds, bins, rate in (
                (300, 32, 0.01),
                (100, 32, 0.02),
                (30, 16, 0.1),
                (10, 16, 0.3),
                (3, 16, 0.5),
                (1, 16, 1.0),
                (3, 8, 0.5),
            )
        ),
        rehearsals=3,
    ),
    "opacus-features": Peer(opacus_features, _FEATURES),
    "opacus-warm": Peer(
        opacus_warm,
        tuple(
            {"rows": rows, "rate": rate, "epochs": 10, "share": 0.2, "clip": 1.0}
            for rows, rate in (
                ("features", 0.5),
                ("features", 0.1),
                ("features", 0.02),
                ("whitened-16", 0.1),
                ("whitened-16", 0.02),
            )
        ),
        warm=True,
    ),
    "opacus-network": Peer(opacus_network, _NETWORK),
    "noisy-products": Peer(
        noisy_products,
        tuple(
            {"rows": rows, "ridge": ridge}
            for rows in ("features", "whitened-8", "whitened-16", "whitened-32")
            for ridge in (0.1, 0.01, 1.0, 10.0)
        ),
        rehearsals=4,
    ),
    "noisy-products-chosen": Peer(
        noisy_products,
        tuple(
            {"rows": rows, "ridge": ridge}
            for rows in ("chosen-16", "chosen-8", "chosen-32")
            for ridge in (0.1, 0.01, 1.0, 10.0)
        ),
        rehearsals=4,
    ),
    "synthetic-mst": Peer(mst_records),
    "synthetic-aim": Peer(aim_records),
    "plain-pate": Peer(
        plain_pate,
        tuple(
            {"teachers": teachers, "asked": asked}
            for teachers in (100, 250, 1000)
            for asked in (100, 1000)
        ),
    ),
}


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
    peer = METHODS[given.name]
    began = time.process_time()
    settings = tune(peer, task)
    chosen = time.process_time()
    scores = peer.method(task, settings)
    about = {
        "settings": dict(settings),
        "tuning_seconds": chosen - began,
        "seconds": time.process_time() - chosen,
    }
    np.savez(given.out, scores=scores, about=np.array(json.dumps(about)))


if __name__ == "__main__":
    main()
