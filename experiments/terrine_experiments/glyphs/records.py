"""Labelled records of characters: which ones, how they are distorted, how many, and their files."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray

from terrine_experiments.glyphs.fonts import (
    FEWEST,
    SIDE,
    Family,
    find_fonts,
    read_families,
    split_families,
)
from terrine_models.data.arrays import DataError
from terrine_protocol.files import write_atomically

Ints = NDArray[np.int64]

PRIVATE = "private.npz"
PUBLIC = "public.npz"
FACTS = "facts.json"
PRIVATE_SHARE = 2 / 3
"""Of the families, those that draw private records."""

# No two of them are one shape in most fonts: of letters that differ in size alone there is one
# case, of I, l and | one, and of O and 0.
CHARACTERS = (
    "0123456789"
    "ABCDEFGHIJKLMNPQRSTUVWXYZ"
    "abdefghijkmnpqrtuy"
    '!"#$%&()*+-/:;<=>?@[\\]^_{}~'
    "¡¢£¥§©®«»¬±µ¶¿×÷°¼½¾"
    "ÆæÐÞþßØøŒœðŁłƒ"
    "ÁÂÄÅÇÉÊËÎÏÑÓÕÖÙÛÜŠŽ"
    "áãåàéêëîïñùûüÿ"
    "€™†"
)
"""150 characters that nearly all fonts for Latin scripts have."""
IMBALANCE = 5.0
"""How many times as frequent the most frequent class is as the rarest."""
WRONG = 0.01
"""Share of the private labels that are wrong."""
PIXELS = 28
TURN = math.radians(5)
"""The largest angle of a record."""
SHEAR = 0.08
"""Its largest shear."""
SHIFT = 1.0
"""Its largest shift, in pixels."""
SIZES = (0.9, 1.05)
THINNER = 0.4
"""How far strokes are worn at most: 1 is half a pixel of a record on each side."""
BOLDER = 0.8
"""How far they are swollen at most."""
NOISE = 0.08
"""The largest standard deviation of a pixel's noise, as a share of the range."""
BLOCK = 4096


@dataclass(frozen=True, eq=False)
class GlyphRecords:
    """Pictures uint8[N, PIXELS, PIXELS] and labels int64[N], indices into the characters."""

    x: NDArray[np.uint8]
    y: Ints
    wrong: int
    """How many of the labels are wrong on purpose."""


def class_counts(total: int, rank: Ints) -> Ints:
    """Divide `total` records among classes [m] of these ranks, from the rarest, 0, to m - 1.

    The most frequent is `IMBALANCE` times the rarest; the logarithms between are evenly spaced.
    """
    weights = np.geomspace(1, IMBALANCE, len(rank))
    ends = np.round(np.cumsum(weights) / weights.sum() * total).astype(np.int64)
    counts: Ints = np.diff(ends, prepend=0)[rank]
    return counts


def make_records(
    families: Sequence[Family],
    characters: str,
    counts: Ints,
    wrong: float,
    random: np.random.Generator,
) -> GlyphRecords:
    """Draw `counts` [m] records of the characters, in random order, a share of them mislabelled.

    Families are equally likely, and so are the faces of each. Each record is distorted anew.
    """
    x = np.empty((int(counts.sum()), PIXELS, PIXELS), np.uint8)
    y = random.permutation(np.repeat(np.arange(len(characters)), counts))
    able = [[each for each in families if character in each.shapes] for character in characters]
    for at in range(0, len(y), BLOCK):
        drawn = []
        for label in y[at : at + BLOCK]:
            family = able[label][random.integers(len(able[label]))]
            faces = family.shapes[characters[label]]
            drawn.append(faces[random.integers(len(faces))])
        x[at : at + BLOCK] = distorted(np.stack(drawn), random)
    mistakes = random.choice(len(y), round(wrong * len(y)), replace=False)
    labels = y.copy()
    labels[mistakes] = (y[mistakes] + random.integers(1, len(characters), len(mistakes))) % len(
        characters
    )
    return GlyphRecords(x, labels, len(mistakes))


def distorted(pictures: NDArray[np.uint8], random: np.random.Generator) -> NDArray[np.uint8]:
    """Turn pictures [B, SIDE, SIDE] into records [B, PIXELS, PIXELS].

    Stroke weight, size, place, turn, slant, sharpness, contrast and noise are drawn at random.
    """
    rows = len(pictures)

    def draw(low: float, high: float) -> torch.Tensor:
        return torch.from_numpy(random.uniform(low, high, rows).astype(np.float32))

    images = torch.from_numpy(pictures).float() / 255
    weight = draw(-THINNER, BOLDER)[:, None, None]
    worn, swollen = weight < 0, torch.where(weight < 0, 1 - images, images)
    swollen = swollen + weight.abs() * (_largest(swollen) - swollen)
    images = torch.where(worn, 1 - swollen, swollen).unsqueeze(1)
    turn, shear, size = draw(-TURN, TURN), draw(-SHEAR, SHEAR), 1 / draw(*SIZES)
    cos, sin = size * torch.cos(turn), size * torch.sin(turn)
    across, down = (2 / PIXELS * draw(-SHIFT, SHIFT)[:, None, None] for _ in range(2))
    place = (torch.arange(SIDE) * 2 + 1) / SIDE - 1
    x, y = place[None, None, :], place[None, :, None]
    cos, sin, shear = (each[:, None, None] for each in (cos, sin, shear))
    grid = torch.stack(
        [cos * x + (shear * cos - sin) * y + across, sin * x + (shear * sin + cos) * y + down], 3
    )
    images = F.avg_pool2d(F.grid_sample(images, grid, align_corners=False), SIDE // PIXELS)
    soft = F.avg_pool2d(F.pad(images, (1, 1, 1, 1)), 3, 1)
    images = images.lerp(soft, draw(0, 1)[:, None, None, None])
    images = images * draw(0.6, 1)[:, None, None, None]
    noise = torch.from_numpy(random.standard_normal(images.shape, dtype=np.float32))
    images = images + draw(0, NOISE)[:, None, None, None] * noise
    found: NDArray[np.uint8] = (images.clamp(0, 1) * 255).round().byte().squeeze(1).numpy()
    return found


def _largest(images: torch.Tensor) -> torch.Tensor:
    """The largest of each pixel's 3 x 3 neighbourhood, of images [B, H, W]."""
    for axis in (1, 2):
        ahead, behind = torch.roll(images, 1, axis), torch.roll(images, -1, axis)
        images = torch.maximum(images, torch.maximum(ahead, behind))
    return images


@dataclass(frozen=True)
class Drawing:
    """What is to be drawn. Equal plans on equal fonts give equal files."""

    private: int = 600_000
    public: int = 10_000
    families: int = FEWEST
    """The fewest that are accepted."""
    characters: str = CHARACTERS
    seed: int = 0
    tuning: bool = False
    """Leave the public families out and split the private ones once more."""


def write_glyphs(
    out: Path,
    plan: Drawing,
    fonts: Path | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Draw records with the fonts of the system, or of a directory, into `out`; return the facts.

    Raises DataError if there are too few families, or a character that one side cannot draw.
    """
    if (out / FACTS).exists():
        raise DataError(f"{out} holds glyphs already. Remove it or choose another directory.")
    files = find_fonts(fonts)
    families = read_families(files, plan.characters)
    if len(families) < plan.families:
        where = "this system" if fonts is None else str(fonts)
        raise DataError(
            f"{where} has {len(families)} font families that can draw the {len(plan.characters)} "
            f"characters, in {len(files)} files; {plan.families} are needed. Install more: "
            "experiments/README.md names packages of Debian and Ubuntu. Or point --fonts at a "
            "directory of .ttf and .otf files."
        )
    own, others = split_families(families, PRIVATE_SHARE, plan.seed)
    if plan.tuning:
        own, others = split_families(own, PRIVATE_SHARE, plan.seed)
    for name, side in (("private", own), ("public", others)):
        able = set().union(*(each.shapes for each in side))
        if lacking := [each for each in plan.characters if each not in able]:
            raise DataError(
                f"None of the {len(side)} {name} families can draw {' '.join(lacking)}. Install "
                "more fonts, or try another --seed."
            )
    random = np.random.Generator(np.random.Philox(plan.seed))
    rank = random.permutation(len(plan.characters))
    tell(f"Drawing {plan.public:,} public records with {len(others)} families …")
    counts = class_counts(plan.public, rank)
    public = make_records(others, plan.characters, counts, 0.0, random)
    tell(f"Drawing {plan.private:,} private records with {len(own)} families …")
    counts = class_counts(plan.private, rank)
    private = make_records(own, plan.characters, counts, WRONG, random)
    out.mkdir(parents=True, exist_ok=True)
    facts: dict[str, Any] = {
        "plan": asdict(plan),
        "imbalance": IMBALANCE,
        "private": _write(out / PRIVATE, private, own, plan.characters),
        "public": _write(out / PUBLIC, public, others, plan.characters),
    }
    text = json.dumps(facts, indent=2, ensure_ascii=False)
    write_atomically(out / FACTS, text.encode() + b"\n")
    return facts


def _write(
    path: Path, records: GlyphRecords, families: list[Family], characters: str
) -> dict[str, Any]:
    """Write an archive and return what there is to know about it."""
    np.savez(path, x=records.x, y=records.y, classes=np.array(list(characters)))
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    counts = np.bincount(records.y, minlength=len(characters))
    return {
        "sha256": digest,
        "records": len(records.y),
        "wrong_labels": records.wrong,
        "counts": dict(zip(characters, counts.tolist(), strict=True)),
        "families": [each.name for each in families],
    }
