"""The virtual adversarial loss is that of its paper."""

from __future__ import annotations

import torch
from torch import nn

from terrine_models.data.arrays import InputSpec
from terrine_models.students.models import EdgeCNN
from terrine_models.students.networks import (
    adversarial_direction,
    divergence,
    frozen_statistics,
    vat_loss,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Logistic(nn.Module):
    """Two classes with scores (w·x, 0): everything about it is known in closed form."""

    def __init__(self, weights: list[float]) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.tensor(weights))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = x @ self.weights
        return torch.stack([score, torch.zeros_like(score)], 1)


def test_divergence_is_the_mean_kullback_leibler_divergence() -> None:
    a, b = torch.randn(5, 4, generator=seeded(1)), torch.randn(5, 4, generator=seeded(2))
    p, q = a.softmax(1), b.softmax(1)
    assert torch.isclose(divergence(a, b), (p * (p / q).log()).sum(1).mean())
    assert divergence(a, a).abs() < 1e-6


def test_the_direction_is_the_one_in_which_a_logistic_model_changes() -> None:
    network = Logistic([3.0, -4.0, 0.0])
    x = torch.randn(8, 3, generator=seeded()) * 0.1
    direction = adversarial_direction(network, x, network(x).detach(), seeded())
    along = direction @ torch.tensor([0.6, -0.8, 0.0])
    assert torch.allclose(direction.norm(dim=1), torch.ones(8))
    assert (along.abs() > 0.999).all()


def test_smoothness_is_half_the_fisher_information_times_the_squared_radius() -> None:
    network = Logistic([3.0, -4.0])
    x = torch.zeros(1, 2)  # p = 1/2: entropy ln 2, Fisher information |w|² / 4 along w
    radius = 0.01
    loss = vat_loss(network, x, radius, seeded())
    smoothness = loss.item() - torch.log(torch.tensor(2.0)).item()
    expected = 0.5 * radius**2 * 25 / 4
    assert abs(smoothness / expected - 1) < 0.01


def test_no_random_direction_changes_a_network_more_than_the_adversarial_one() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 5))
    x = torch.randn(16, 20, generator=seeded())
    clean = network(x).detach()
    adversarial = divergence(
        clean, network(x + 0.5 * adversarial_direction(network, x, clean, seeded()))
    )
    for seed in range(50):
        random = torch.nn.functional.normalize(torch.randn(16, 20, generator=seeded(seed)))
        assert divergence(clean, network(x + 0.5 * random)) < adversarial


def test_the_prediction_at_the_input_itself_is_a_fixed_target() -> None:
    """Only p(x + r) learns from the smoothness; p(x) learns from the entropy alone."""
    network = Logistic([2.0, 1.0])
    x = torch.tensor([[0.3, -0.2]])
    vat_loss(network, x, 0.1, seeded()).backward()  # type: ignore[no-untyped-call]
    got = network.weights.grad
    with torch.no_grad():
        clean = network(x)
        scale = network.weights / network.weights.norm()
    gradients: list[torch.Tensor | None] = []
    for sign in (1, -1):
        network.weights.grad = None
        scores = network(x)
        entropy = -(scores.softmax(1) * scores.log_softmax(1)).sum()
        step = x + 0.1 * sign * scale
        (divergence(clean, network(step)) + entropy).backward()
        gradients.append(network.weights.grad)
    assert got is not None
    assert any(torch.allclose(got, g, atol=1e-4) for g in gradients if g is not None)


def test_adversarial_inputs_do_not_change_batch_statistics() -> None:
    network = EdgeCNN(InputSpec(shape=(8, 8), dtype="uint8", low=0, high=16), 10).train()
    x = torch.rand(12, 1, 8, 8, generator=seeded())
    before = {k: v.clone() for k, v in network.state_dict().items() if "running" in k}
    vat_loss(network, x, 1.0, seeded()).backward()  # type: ignore[no-untyped-call]
    assert before
    for name, value in before.items():
        assert torch.equal(network.state_dict()[name], value)
    network(x)
    assert any(not torch.equal(network.state_dict()[k], v) for k, v in before.items())


def test_statistics_move_again_after_an_error() -> None:
    network = nn.Sequential(nn.BatchNorm2d(1, momentum=0.3))
    try:
        with frozen_statistics(network):
            raise RuntimeError
    except RuntimeError:
        pass
    assert network[0].momentum == 0.3
