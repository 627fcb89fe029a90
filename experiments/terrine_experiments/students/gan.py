"""The improved GAN: a student that also tells public images from generated ones.

After Salimans, Goodfellow, Zaremba, Cheung, Radford and Chen, "Improved Techniques for Training
GANs", NIPS 2016, section 5, with feature matching (section 3.1); PATE's students of MNIST and SVHN
were trained so. The discriminator is the student. Its m scores are those of the classes, and the
score of "generated" is fixed at 0, so an image is real with probability Z / (Z + 1), where Z is the
sum of the exponentials of the m scores. The generator is needed for training alone.

Two things differ from the paper, as students are trained for hundreds of steps rather than hundreds
of thousands: the discriminator is the usual network for images, batch normalisation included, on
distorted images; and it is pressed to be certain of the class of public images (conditional
entropy, as in Dai et al., "Good Semi-Supervised Learning That Requires a Bad GAN", NIPS 2017).
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn

from terrine_experiments.students.networks import EdgeCNN, Network, NetworkTraining, initialise
from terrine_models.students.models import Task

NOISE, HIDDEN = 100, 500
"""Numbers that an image is generated from, and the width of the generator's two layers."""
BETAS = (0.5, 0.999)
"""Of Adam, for both networks, as in the paper."""
ENTROPY = 1.0
"""Weight of the conditional entropy of public images."""


class Generator(nn.Module):
    """Images [B, *shape] of uniform noise, between the least and the largest public pixel."""

    def __init__(self, images: torch.Tensor, random: torch.Generator) -> None:
        super().__init__()
        self.shape, self.random = images.shape[1:], random
        self.low, self.high = float(images.min()), float(images.max())
        self.layers = nn.Sequential(
            nn.Linear(NOISE, HIDDEN, bias=False),
            nn.BatchNorm1d(HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN, bias=False),
            nn.BatchNorm1d(HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, self.shape.numel()),
        )
        initialise(self.layers, random)

    def forward(self, count: int) -> torch.Tensor:
        """`count` images."""
        noise = torch.rand(count, NOISE, generator=self.random)
        unit = torch.sigmoid(self.layers(noise))
        return (self.low + unit * (self.high - self.low)).view(count, *self.shape)


class Adversary:
    """The generator, and what the discriminator learns against it."""

    def __init__(
        self, network: nn.Module, images: torch.Tensor, random: torch.Generator, pace: float
    ) -> None:
        """Generate what looks like `images` [N, C, H, W] to `network`, at the rate `pace`."""
        if not isinstance(network, EdgeCNN):
            raise ValueError("gan is for images: it needs the network for them")
        self.network = network
        self.generator = Generator(images, random)
        self.optimizer = torch.optim.Adam(self.generator.parameters(), pace, betas=BETAS)

    def loss(self, x: torch.Tensor, labels: torch.Tensor, pool: torch.Tensor) -> torch.Tensor:
        """Loss of the discriminator on x [B, …] with `labels` [B], and on public images [U, …].

        All images are one batch, so batch normalisation treats real and generated ones alike.
        """
        self.fake = self.generator(len(pool))
        features = self.network.features(torch.cat([x, pool, self.fake.detach()]))
        sizes = [len(x), len(pool), len(pool)]
        self.aim = torch.split(features, sizes)[1].detach().mean(0)
        known, real, generated = torch.split(self.network.scores(features), sizes)
        z_real, z_generated = real.logsumexp(1), generated.logsumexp(1)
        told_apart = (F.softplus(z_real) - z_real).mean() + F.softplus(z_generated).mean()
        entropy = -(real.softmax(1) * real.log_softmax(1)).sum(1).mean()
        supervised = F.cross_entropy(known, labels)
        total: torch.Tensor = supervised + 0.5 * told_apart + ENTROPY * entropy
        return total

    def follow(self) -> None:
        """One step of the generator, towards the mean features of the last public images."""
        self.network.requires_grad_(False)
        missed = (self.network.features(self.fake).mean(0) - self.aim).square().mean()
        self.optimizer.zero_grad()
        missed.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.network.requires_grad_(True)


class Gan(Network):
    """The improved GAN, for images."""

    wants = "images"
    momenta = BETAS

    @classmethod
    def can(cls, task: Task) -> bool:
        """Images alone: the classes of a table are not separated by gaps."""
        return not task.is_table

    @property
    def settings(self) -> NetworkTraining:
        """Half as many public images as usual in a step, since as many are generated."""
        usual = super().settings
        return replace(usual, unlabelled_batch=max(2, usual.unlabelled_batch // 2))

    def against(self, network: nn.Module, x: torch.Tensor, random: torch.Generator) -> Adversary:
        """A generator of images that look public."""
        return Adversary(network, x, random, self.settings.learning_rate / 2)
