"""The improved GAN: its losses are those of the paper, and unlabelled images teach it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from refusals import refuses
from sklearn.datasets import load_digits
from taught import chosen, taught

from terrine_experiments.students.gan import ENTROPY, Adversary
from terrine_experiments.students.networks import (
    EdgeCNN,
    NetworkTraining,
    build_network,
    initialise,
)
from terrine_models.data.arrays import DIGITS, InputSpec
from terrine_models.data.workers import side_by_side
from terrine_models.students.selection import asking_order

pytestmark = pytest.mark.nightly

SMALL = InputSpec(shape=(8, 8), dtype="uint8", low=0, high=16)
TABLE = InputSpec(shape=(4,), dtype="float32", low=0, high=1)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rivals(images: torch.Tensor) -> tuple[EdgeCNN, Adversary]:
    network = EdgeCNN(SMALL, 3)
    initialise(network, seeded(1))
    return network.train(), Adversary(network, images, seeded(2), 1e-2)


def test_generated_is_one_more_class_whose_score_is_zero() -> None:
    """The same loss, written with the m + 1 scores of the paper."""
    x, pool = (
        torch.rand(6, 1, 8, 8, generator=seeded(3)),
        torch.rand(5, 1, 8, 8, generator=seeded(4)),
    )
    labels = torch.arange(6) % 3
    network, adversary = rivals(pool)
    loss = adversary.loss(x, labels, pool)
    scores = network(torch.cat([x, pool, adversary.fake]))
    known, both = scores[:6], scores[6:]
    chances = torch.cat([both, torch.zeros(10, 1)], 1).softmax(1)
    real, generated = chances[:5], chances[5:]
    told_apart = -(1 - real[:, 3]).log().mean() - generated[:, 3].log().mean()
    own = both[:5].softmax(1)
    entropy = -(own * own.log()).sum(1).mean()
    expected = F.cross_entropy(known, labels) + told_apart / 2 + ENTROPY * entropy
    assert torch.isclose(loss, expected, atol=1e-4)


def test_the_generator_learns_to_match_the_mean_features_of_public_images() -> None:
    pool = torch.rand(64, 1, 8, 8, generator=seeded(4)) * 0.5 + 0.25
    network, adversary = rivals(pool)

    def missed() -> float:
        difference = network.features(adversary.fake).mean(0) - adversary.aim
        return difference.square().mean().item()

    distances = []
    before = {name: value.clone() for name, value in network.named_parameters()}
    for _ in range(40):
        adversary.loss(pool[:3], torch.arange(3), pool)
        distances.append(missed())
        adversary.follow()
    assert np.mean(distances[-5:]) < np.mean(distances[:5]) / 2
    assert all((value == before[name]).all() for name, value in network.named_parameters())
    assert adversary.fake.min() >= pool.min()
    assert adversary.fake.max() <= pool.max()


@pytest.mark.slow
def test_a_gan_learns_more_from_unlabelled_digits_than_from_labels_alone() -> None:
    bundle = load_digits()
    images, truth = bundle.images.astype(np.uint8), bundle.target.astype(np.int64)
    labels = np.full(400, -1)
    picked = asking_order(images[:400], SMALL, seed=0)[:50]
    labels[picked] = truth[picked]

    def accuracy(method: str) -> float:
        how = NetworkTraining(method, steps=200, batch=32, unlabelled_batch=64)
        student = taught(method, images[:400], labels, SMALL, DIGITS, training=how)
        return student.accuracy(images[1000:], truth[1000:])

    methods: tuple[str, ...] = ("supervised", "gan")
    supervised, gan = side_by_side(accuracy, methods)
    assert gan > supervised + 0.01


@pytest.mark.slow
def test_a_gan_of_which_a_class_was_never_answered_is_checked_as_others_are() -> None:
    bundle = load_digits()
    images, truth = bundle.images.astype(np.uint8)[:300], bundle.target.astype(np.int64)[:300]
    labels = np.where((np.arange(300) < 60) & (truth != 7), truth, -1)
    made = chosen("gan", images, labels, SMALL, DIGITS, NetworkTraining("gan", steps=60))
    assert [each.method for each in made.choice.judged] == ["ridge", "gan"]
    assert made.student.accuracy(images, truth) > 0.7


def test_tables_have_no_gan() -> None:
    x, labels = np.random.default_rng(0).random((20, 4)), np.arange(20) % 2
    with refuses(ValueError, "images"):
        chosen("gan", x, labels, TABLE, ("a", "b"))
    with refuses(ValueError, "network"):
        Adversary(
            build_network(TABLE, 2, seeded()),
            torch.rand(4, 1, 2, 2, generator=seeded()),
            seeded(),
            0.1,
        )
