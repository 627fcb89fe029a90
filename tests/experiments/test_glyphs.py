"""`make glyphs` draws labelled characters with the fonts of a machine."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from support.processes import Terrine
from support.wording import holds
from terrine_experiments.glyphs.fonts import (
    Family,
    designs,
    find_fonts,
    read_families,
    split_families,
)
from terrine_experiments.glyphs.records import (
    IMBALANCE,
    PIXELS,
    PRIVATE,
    PUBLIC,
    Drawing,
    write_glyphs,
)
from terrine_models.data.arrays import load_npz

pytestmark = pytest.mark.nightly

FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
"""A handful of families that come with matplotlib."""
FEW = "ABDEGHKMRS258"
TINY = Drawing(private=3000, public=400, families=4, characters=FEW)


@pytest.fixture(scope="module")
def families() -> list[Family]:
    return read_families(find_fonts(FONTS), FEW)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("glyphs") / "data"
    write_glyphs(out, TINY, FONTS)
    return out


def test_records_are_as_the_facts_say(drawn: Path) -> None:
    facts = json.loads((drawn / "facts.json").read_text())
    for name, file, wrong in (("private", PRIVATE, 30), ("public", PUBLIC, 0)):
        data, fact = load_npz(drawn / file), facts[name]
        assert fact["sha256"] == hashlib.sha256((drawn / file).read_bytes()).hexdigest()
        assert data.inputs.shape == (fact["records"], PIXELS, PIXELS)
        assert data.classes == tuple(FEW)
        assert fact["wrong_labels"] == wrong
        assert list(fact["counts"].values()) == np.bincount(data.labels).tolist()
        assert (data.inputs.reshape(len(data), -1).max(axis=1) > 60).all()  # none is blank
    assert len(load_npz(drawn / PRIVATE)) == TINY.private
    counts = facts["public"]["counts"].values()
    assert max(counts) / min(counts) == pytest.approx(IMBALANCE, rel=0.05)
    assert not set(facts["private"]["families"]) & set(facts["public"]["families"])


def test_the_seed_decides_everything(drawn: Path, tmp_path: Path) -> None:
    facts = json.loads((drawn / "facts.json").read_text())
    again = write_glyphs(tmp_path / "again", TINY, FONTS)
    assert again["private"]["sha256"] == facts["private"]["sha256"]
    other = write_glyphs(tmp_path / "other", Drawing(**{**TINY.__dict__, "seed": 1}), FONTS)
    assert other["public"]["sha256"] != facts["public"]["sha256"]


def test_one_design_is_never_on_both_sides(families: list[Family]) -> None:
    names = [{each.name for each in group} for group in designs(families)]
    assert any({"DejaVu Sans", "DejaVu Sans Mono"} <= group for group in names)
    copy = Family("Another Name", families[-1].shapes)
    names = [{each.name for each in group} for group in designs([*families, copy])]
    assert any({"Another Name", families[-1].name} <= group for group in names)
    for seed in range(20):
        own, others = (
            {each.name for each in side} for side in split_families(families, 2 / 3, seed)
        )
        assert own
        assert not own & others
        assert len({"DejaVu Sans", "DejaVu Sans Mono"} & own) != 1


def test_too_few_fonts_are_said_and_nothing_is_written(
    experiments: Terrine, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    said = experiments("glyphs", out, "--fonts", FONTS).refused
    holds(said, 60, "needed")
    assert "experiments/README.md" in said
    (tmp_path / "empty").mkdir()
    holds(experiments("glyphs", out, "--fonts", tmp_path / "empty").refused, 0, "families")
    holds(experiments("glyphs", out, "--fonts", tmp_path / "none").refused, "directory")
    assert not out.exists()


def test_the_experiment_runs_on_what_was_drawn(
    experiments: Terrine, drawn: Path, tmp_path: Path
) -> None:
    holds(experiments("reproduce", "glyph", tmp_path).refused, "private.npz")
    options = ("--quick", "--epsilon", "30", "--runs", "1", "--out", tmp_path / "out")
    last = ("--protocol", "last-1000")
    said = " ".join(experiments("reproduce", "glyph", drawn, *options, *last).fine.split())
    holds(said, "Papernot", 2018)
    holds(said, "public")
    (found,) = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["delta"] == 1e-8
    assert found["public_inputs"] + found["tested"] == TINY.public
    assert found["accuracies"][0] > 3 * found["majority"]
