"""Write the private and the public records as files, with the facts about them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from terrine_experiments.glyphs.fonts import (
    FEWEST,
    Family,
    find_fonts,
    read_families,
    split_families,
)
from terrine_experiments.glyphs.records import (
    CHARACTERS,
    IMBALANCE,
    WRONG,
    GlyphRecords,
    class_counts,
    make_records,
)
from terrine_models.data.arrays import DataError
from terrine_protocol.files import write_atomically

PRIVATE = "private.npz"
PUBLIC = "public.npz"
FACTS = "facts.json"
PRIVATE_SHARE = 2 / 3
"""Of the families, those that draw private records."""


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
        _check(name, side, plan)
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


def _check(side: str, families: list[Family], plan: Drawing) -> None:
    lacking = [each for each in plan.characters if not any(each in own.shapes for own in families)]
    if lacking:
        raise DataError(
            f"None of the {len(families)} {side} families can draw {' '.join(lacking)}. Install "
            "more fonts, or try another --seed."
        )


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
