"""No one sees a vote: two servers add up shares, and each one's view says nothing of any vote."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2, chi2_contingency

from addons.federation.owners import SharingOwners, choices, shared_federation, sharing_owners
from support.data import DigitsEnsemble
from support.wording import refuses
from terrine_addons.federation import voters as remote_voters
from terrine_addons.federation.aggregator import SERVICE, Aggregator
from terrine_addons.federation.federations import federation_digest, save_federation
from terrine_addons.federation.voters import (
    AggregatorTerms,
    Share,
    SharedVoters,
    probe,
    substitute_vote,
    sums_are_consistent,
)
from terrine_models.teachers.ensemble import Ensemble
from terrine_server.errors import EnsembleUnavailable
from terrine_server.labeling.strategies import SharedVotes
from terrine_server.ledger import EnsembleRecord
from terrine_server.privacy import NoisyVotes, build_mechanism
from terrine_server.privacy.noise import NoiseTable

OWNERS, CLASSES, SIGMA = 20, 10, 12.0
NAMES = tuple(f"owner-{i}" for i in range(OWNERS))
TERMS = {"owners": NAMES, "classes": CLASSES, "sigma": SIGMA, "epsilon": 20, "delta": 1e-6}
LEVEL = 1e-9
"""How often a statistical test fails where nothing is wrong."""


@pytest.fixture(scope="module")
def digits(digits_ensemble: DigitsEnsemble) -> Ensemble:
    return Ensemble.load(digits_ensemble.directory, device="cpu")


@pytest.fixture(scope="module")
def served(
    digits: Ensemble, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[SharingOwners, Aggregator]]:
    directory = tmp_path_factory.mktemp("party") / "aggregator"
    with sharing_owners(
        lambda x: choices(digits, x),
        digits.manifest.input,
        AggregatorTerms.model_validate(TERMS),
        directory,
    ) as both:
        yield both


@pytest.fixture
def owners(served: tuple[SharingOwners, Aggregator]) -> SharingOwners:
    served[0].behaviour.clear()
    served[0].seen.clear()
    return served[0]


@pytest.fixture
def aggregator(served: tuple[SharingOwners, Aggregator]) -> Aggregator:
    return served[1]


@pytest.fixture
def record(tmp_path: Path, digits: Ensemble, owners: SharingOwners, aggregator: Aggregator) -> Any:
    """The facts that voting needs of the ensemble's record; its federation is in `tmp_path`."""
    federation = shared_federation(owners, digits.manifest.input, 15)
    save_federation(tmp_path, federation)
    (tmp_path / "aggregator.token").write_bytes((aggregator.directory / SERVICE).read_bytes())
    facts = SimpleNamespace(
        teachers=OWNERS, classes=list(federation.classes), kind="shared", aggregator_sigma=None
    )
    record = {
        "name": "ward",
        "path": "",
        "manifest_sha256": federation_digest(tmp_path),
        "facts": facts,
    }
    return cast(EnsembleRecord, SimpleNamespace(**record))


def tally(digits: Ensemble, x: NDArray[Any]) -> NDArray[np.int64]:
    """Return the plaintext tally of the first owners."""
    return np.array([np.bincount(row, minlength=CLASSES) for row in choices(digits, x)[:, :OWNERS]])


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[NDArray[np.int64]]:
    """What the aggregator draws, from the operating system's randomness, as it draws it."""
    kept, sample = [], NoiseTable.sample

    def keep(table: NoiseTable, shape: tuple[int, ...], entropy: Any = os.urandom) -> Any:
        kept.append(sample(table, shape, entropy))
        return kept[-1]

    monkeypatch.setattr(NoiseTable, "sample", keep)
    return kept


def test_sums_are_plaintext_sums_bit_for_bit(
    tmp_path: Path,
    record: EnsembleRecord,
    digits: Ensemble,
    digits_ensemble: DigitsEnsemble,
    drawn: list[NDArray[np.int64]],
) -> None:
    x = digits_ensemble.public[:64]
    sums = SharedVoters(tmp_path).votes(record, x)
    assert sums.dtype == np.uint32
    (noise,) = drawn
    assert (sums - noise.astype(np.uint32) == tally(digits, x)).all()
    answered = NoisyVotes(OWNERS, CLASSES, 3.0).release_shared(sums)
    assert answered.counts is not None
    assert (answered.counts == tally(digits, x) + noise + drawn[1]).all()
    assert (answered.labels == answered.counts.argmax(axis=1)).all()


def test_what_is_opened_has_all_of_the_aggregators_noise_anew(
    tmp_path: Path, record: EnsembleRecord, digits: Ensemble, digits_ensemble: DigitsEnsemble
) -> None:
    x, voters = digits_ensemble.public[:100], SharedVoters(tmp_path)
    first, second = (
        voters.votes(record, x).view(np.int32).astype(np.int64) - tally(digits, x) for _ in "ab"
    )
    noise = np.concatenate([first, second])
    assert variance_fits(noise, SIGMA)
    assert not variance_fits(noise // 2, SIGMA), "half the noise would be found"
    assert variance_fits((first - second) / np.sqrt(2), SIGMA), "fresh for the same query"
    assert not variance_fits((first - first) / np.sqrt(2), SIGMA)


def variance_fits(noise: NDArray[Any], sigma: float) -> bool:
    """Whether noise is as wide as it should be, or a sum of squares came out unusually small."""
    squares = float(np.square(noise, dtype=np.float64).sum()) / sigma**2
    return bool(chi2.cdf(squares, noise.size) > LEVEL / 2)  # of two in a test


def dependence(one: Share, other: Share) -> float:
    """Return the p-value of two views' having the same law: of bytes, most and least significant,
    of each number, in 16 parts, the worst of all numbers, times how many these are."""
    worst, tests = 1.0, 0
    for shift in (0, 24):
        for column in range(one.shape[1]):
            counts = [
                np.bincount((view[:, column] >> shift & 0xFF) // 16, minlength=16)
                for view in (one, other)
            ]
            filled = np.array(counts)[:, np.sum(counts, axis=0) > 0]
            if filled.shape[1] > 1:
                worst = min(worst, float(chi2_contingency(filled).pvalue))
            tests += 1
    return worst * tests


def uniformity(view: Share) -> float:
    """Return the p-value of a view's being uniform, byte by byte."""
    counts = np.bincount(np.frombuffer(view.tobytes(), dtype=np.uint8), minlength=256)
    expected = view.nbytes / 256
    return float(chi2.sf(np.square(counts - expected).sum() / expected, 255))


Split = Callable[..., tuple[Share, Share]]


def stale(labels: NDArray[np.int64], classes: int, entropy: Any = os.urandom) -> Any:
    """Draw the second share once and for ever."""
    return remote_voters.split_votes(labels, classes, lambda size: b"\x5a" * size)


def narrow(labels: NDArray[np.int64], classes: int, entropy: Any = os.urandom) -> Any:
    """Draw numbers of 8 bits alone."""
    ours, aggregators = remote_voters.split_votes(labels, classes)
    return ours + aggregators - (aggregators & 0xFF), aggregators & 0xFF


def telling(labels: NDArray[np.int64], classes: int, entropy: Any = os.urandom) -> Any:
    """Send the vote where the mask belongs."""
    ours, aggregators = remote_voters.split_votes(labels, classes)
    return ours, aggregators | remote_voters.one_hot(labels, classes)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("split", "sound"),
    [(remote_voters.split_votes, True), (stale, False), (narrow, False), (telling, False)],
)
def test_neither_share_says_anything_of_the_vote(split: Split, sound: bool) -> None:
    """A false alarm once in 10⁹ times; each way of sharing that is not sound is found."""
    rows = 20_000
    zero, seven = (split(np.full(rows, label), CLASSES) for label in (0, 7))
    again = split(np.zeros(rows, np.int64), CLASSES)
    found = [uniformity(view) for view in (*zero, *seven)]
    found += [dependence(one, other) for one, other in zip(zero, seven, strict=True)]
    fresh = all((one != other).mean() > 0.99 for one, other in zip(zero, again, strict=True))
    assert (min(found) > LEVEL / len(found) and fresh) == sound
    assert ((zero[0] + zero[1])[:, 0] == 1).all() or not sound


@pytest.mark.statistical
def test_both_servers_views_of_a_round_are_uniform_and_never_the_same(
    tmp_path: Path, record: EnsembleRecord, owners: SharingOwners, digits_ensemble: DigitsEnsemble
) -> None:
    """A false alarm once in 10⁹ times; a vote, or a share used twice, is found with certainty."""
    x, voters = np.repeat(digits_ensemble.public[:1], 50, axis=0), SharedVoters(tmp_path)
    for _ in range(2):
        voters.votes(record, x)
    assert len(owners.seen) == 2 * OWNERS
    for view in zip(*owners.seen, strict=True):
        assert uniformity(np.concatenate(view)) > LEVEL / 2  # there are two views
        assert len({share.tobytes() for share in view}) == 2 * OWNERS
        rows = np.concatenate(view)
        assert len(np.unique(rows, axis=0)) == len(rows), "the same input has other shares"


def test_an_absent_owner_costs_no_privacy_and_below_the_quorum_an_answer(
    tmp_path: Path,
    record: EnsembleRecord,
    digits: Ensemble,
    owners: SharingOwners,
    aggregator: Aggregator,
    digits_ensemble: DigitsEnsemble,
    drawn: list[NDArray[np.int64]],
) -> None:
    x, voters = digits_ensemble.public[:16], SharedVoters(tmp_path)
    voters.check(record)
    failing = ["short", "aggregator's is short", "status"]
    owners.behaviour |= dict(enumerate(failing))
    sums = voters.votes(record, x) - drawn[-1].astype(np.uint32)
    expected = tally(digits, x)
    for number in range(len(failing)):
        expected -= remote_voters.one_hot(choices(digits, x)[:, number], CLASSES)
        expected += remote_voters.one_hot(substitute_vote(NAMES[number], x, CLASSES), CLASSES)
    assert (sums == expected).all()

    before = aggregator.count.released
    owners.behaviour = dict.fromkeys(range(6), "status")
    with refuses(EnsembleUnavailable, 15):
        voters.votes(record, x)
    assert aggregator.count.released == before, "nothing was released, and nothing counted"

    owners.behaviour = {3: "without the aggregator"}  # says that it shared, and did not
    with refuses(EnsembleUnavailable, "answer"):
        voters.votes(record, x)
    assert aggregator.count.released == before


@pytest.mark.statistical
def test_crude_lies_are_found_and_say_nothing_of_votes(
    tmp_path: Path,
    record: EnsembleRecord,
    owners: SharingOwners,
    aggregator: Aggregator,
    digits_ensemble: DigitsEnsemble,
) -> None:
    owners.behaviour[4] = "lies"
    voters, before = SharedVoters(tmp_path), aggregator.count.released
    for _ in range(3):
        with refuses(EnsembleUnavailable, "add"):
            voters.votes(record, digits_ensemble.public[:4])
    assert aggregator.count.released == before + 4, (
        "asked once: retries cost the aggregator nothing"
    )
    # The bound is wide enough for the noise, wherever votes are, and no wider than it must be.
    votes = np.zeros((10_000, CLASSES), dtype=np.uint32)
    votes[:, 3] = 1000
    noise = np.random.default_rng(1).normal(0, SIGMA, votes.shape).round().astype(np.int64)
    assert sums_are_consistent(votes + noise.astype(np.uint32), 1000, SIGMA)
    one = votes[:1]
    bound = 7.53 * SIGMA * np.sqrt(CLASSES)
    for extra, fits in ((bound - 2, True), (bound + 2, False), (-bound - 2, False)):
        lie = one.copy()
        lie[0, 0] += np.int64(extra).astype(np.uint32)
        assert sums_are_consistent(lie, 1000, SIGMA) == fits


def test_the_owners_are_asked_once_when_they_are_gathered(
    tmp_path: Path, record: EnsembleRecord, owners: SharingOwners, aggregator: Aggregator
) -> None:
    from terrine_addons.federation.federations import load_federation

    before = aggregator.count.released
    owners.behaviour |= {1: "status", 2: "short"}
    found = probe(tmp_path, load_federation(tmp_path))
    assert [number for number, wrong in enumerate(found) if wrong] == [1, 2]
    assert aggregator.count.released == before


@pytest.mark.statistical
def test_noise_comes_before_decoding() -> None:
    """An aggregator shifts a count to where numbers wrap: "more than 7 votes" must not become
    2³²."""
    mechanism, rows = NoisyVotes(OWNERS, 2, 3.0), 400
    seven, eight = np.tile([7, 13], (rows, 1)), np.tile([8, 12], (rows, 1))
    shift = np.array([2**31 - 8, 8 - 2**31], dtype=np.int64).astype(np.uint32)

    def released(votes: NDArray[np.int64], by: Share) -> NDArray[np.int64]:
        given = iter(bytes([i % 251 for i in range(k)]) for k in [rows * 2 * 32])
        found = mechanism.release_shared(votes.astype(np.uint32) + by, lambda _: next(given))
        assert found.counts is not None
        return found.counts

    nothing = np.zeros(2, dtype=np.uint32)
    for votes in (seven, eight):
        plain = released(votes, nothing)
        assert (released(votes, shift).astype(np.uint32) == plain.astype(np.uint32) + shift).all()
    wrapped = [
        (np.asarray(mechanism.release_shared(votes.astype(np.uint32) + shift).counts) < 0).mean(0)
        for votes in (seven, eight)
    ]
    # One vote more moves the share by 0.13; 0.4 is 7 deviations of 0.035 further, and the two
    # classes are two of them: less than once in 10⁹ times. Without noise it is 1.
    assert np.abs(wrapped[0] - wrapped[1]).max() < 0.4, "noise decides which side it wraps to"


def test_only_noisy_votes_is_answered_from_sums() -> None:
    spec = {"name": "gnmax", "sigma": 3.0}
    sums = np.zeros((1, CLASSES), dtype=np.uint32)
    unused: Any = None
    with refuses(EnsembleUnavailable, "noisy_votes"):
        mechanism = build_mechanism(spec, teachers=OWNERS, classes=CLASSES)
        SharedVotes(unused, mechanism, unused, unused).release(sums, None)
    wrongs: list[Any] = [sums.astype(np.int64), sums[0], sums[:, 1:]]
    for wrong in wrongs:
        with refuses(ValueError, "uint32"):
            NoisyVotes(OWNERS, CLASSES, 3.0).release_shared(wrong)


def test_a_aggregator_that_spent_its_budget_releases_nothing_more(
    tmp_path: Path,
    record: EnsembleRecord,
    aggregator: Aggregator,
    digits_ensemble: DigitsEnsemble,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, voters = digits_ensemble.public[:16], SharedVoters(tmp_path)
    monkeypatch.setattr(aggregator.count, "most", aggregator.count.released + 17)
    voters.votes(record, x)
    with refuses(EnsembleUnavailable, "budget"):
        voters.votes(record, x)
    voters.votes(record, x[:1])
