"""Font families that can draw the characters, and how they are split into two sides.

Families that share a design may not stand on both sides, or the private fonts would be known in
public. Many fonts are drawn after another or are sold under several names; so families that draw
nearly the same shapes, or whose name begins with that of another family, are split as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from terrine_models.data.arrays import DataError

if TYPE_CHECKING:
    from PIL import ImageFont

Picture = NDArray[np.uint8]
Floats = NDArray[np.float64]

FEWEST = 60
"""Families for which teachers see enough designs to know a character in one that they never saw."""
COVERED = 0.85
"""Share of the characters that a family must be able to draw."""
FACES = 8
"""Faces (bold, italic, …) of one family that are used, at most."""
SIDE = 56
"""Pixels of a picture."""
EM = 44
"""Pixels of the font's em in it."""
BASELINE = 43
"""Pixels from its top to the baseline."""
SEEN = 16
"""The brightest pixel of a shape has at least this value; a fainter one counts as blank."""
PLAIN = ("Regular", "Roman", "Book", "Normal")
"""Names of the face by which a family is compared with others, if it has one."""
ALIKE = 0.93
"""Correlation of the shapes of two families from which they are one design under two names."""
LETTERS = "aegknstyAGMRS258"
"""The characters by which designs are compared."""
MIN_MEDIAN_CORRELATION = 0.31
"""Fonts of symbols store them in the place of letters. A family is one if its shapes correlate less
than this with the median of all families."""
MIN_ACCENT_CORRELATION = 0.5
"""It is one, too, if its accented letters correlate less than this with the plain ones."""
ACCENTED = tuple(zip("ÁÂÉÊÑÕÛáãéêñû", "AAEENOUaaeenu", strict=True))


@dataclass(frozen=True, eq=False)
class Family:
    """A font family: for each character and each of `LETTERS`, the pictures [SIDE, SIDE] by its
    faces, the plainest first."""

    name: str
    shapes: Mapping[str, Sequence[Picture]]


def find_fonts(directory: Path | None = None) -> list[Path]:
    """Return TrueType and OpenType files in a directory, or of the system. Raises DataError."""
    from matplotlib.font_manager import findSystemFonts

    if directory is not None and not directory.is_dir():
        raise DataError(
            f"{directory} is not a directory; --fonts takes one with .ttf or .otf files."
        )
    found = findSystemFonts(None if directory is None else [str(directory)])
    return sorted(Path(each) for each in found)


def read_families(files: Iterable[Path], characters: str) -> list[Family]:
    """Draw the characters with every family that covers `COVERED` of them, in order of name.

    Left out are characters that a font has no glyph for, files that cannot be read, and families
    that draw something else in the place of letters.
    """
    from matplotlib.ft2font import FT2Font

    faces: dict[str, list[tuple[tuple[bool, str], Path]]] = {}
    for file in files:
        try:
            font = FT2Font(str(file))
            codes = font.get_charmap()
        except (RuntimeError, OSError, ValueError):
            continue  # damaged, or of pixels: no outlines to draw
        if sum(ord(each) in codes for each in characters) >= COVERED * len(characters):
            style = (font.style_name not in PLAIN, font.style_name)
            faces.setdefault(font.family_name, []).append((style, file))
    families = []
    for name, styles in sorted(faces.items()):
        styles.sort(key=lambda each: (each[0], each[1].name))
        kept = styles[:: -(-len(styles) // FACES)]
        wanted = "".join(dict.fromkeys(characters + LETTERS))
        drawn = [draw_face(file, wanted) for _, file in kept]
        shapes = {each: [face[each] for face in drawn if each in face] for each in wanted}
        shapes = {each: pictures for each, pictures in shapes.items() if pictures}
        if sum(each in shapes for each in characters) >= COVERED * len(characters):
            families.append(Family(name, shapes))
    return _without_symbols(families)


def draw_face(file: Path, characters: str) -> dict[str, Picture]:
    """Draw the characters that one font file has glyphs for.

    Pictures are centred across, and stand on one baseline; what would not fit is drawn smaller. No
    character gets the box that fonts show for those they lack.
    """
    from matplotlib.ft2font import FT2Font
    from PIL import ImageFont

    codes = FT2Font(str(file)).get_charmap()
    font = ImageFont.truetype(str(file), EM, layout_engine=ImageFont.Layout.BASIC)
    lacking = next((code for code in range(0xE000, 0x10FFFF) if code not in codes), None)
    box = None if lacking is None else draw(font, chr(lacking))
    pictures = {}
    for character in characters:
        if not codes.get(ord(character)):  # number 0 is the box
            continue
        picture = draw(font, character)
        if picture.max() >= SEEN and (box is None or not np.array_equal(picture, box)):
            pictures[character] = picture
    return pictures


def draw(font: ImageFont.FreeTypeFont, character: str) -> Picture:
    """Draw one character, uint8[SIDE, SIDE]: bright on black."""
    from PIL import Image, ImageDraw

    left, top, right, bottom = font.getbbox(character, anchor="ls")
    most = max((right - left) / SIDE, (bottom - top) / SIDE)
    if most > 1:
        font = font.font_variant(size=int(font.size / most) - 1)
        left, top, right, bottom = font.getbbox(character, anchor="ls")
    across = (SIDE - left - right) / 2
    down = min(max(BASELINE, -top), SIDE - bottom)
    image = Image.new("L", (SIDE, SIDE))
    ImageDraw.Draw(image).text((across, down), character, fill=255, font=font, anchor="ls")
    return np.asarray(image)


def split_families(
    families: Sequence[Family], share: float, seed: int
) -> tuple[list[Family], list[Family]]:
    """Deal designs at random: families with about `share` of all, and the others."""
    groups = designs(families)
    order = np.random.Generator(np.random.Philox(seed)).permutation(len(groups))
    first: list[Family] = []
    second: list[Family] = []
    for number in order:
        group = groups[number]
        wanted = len(first) + len(group) / 2 <= share * len(families)
        (first if wanted else second).extend(group)
    name = attrgetter("name")
    return sorted(first, key=name), sorted(second, key=name)


def designs(families: Sequence[Family]) -> list[list[Family]]:
    """Group families of nearly the same shapes, or of the same beginning of a name, in chains."""
    shapes = np.stack([_design(each) for each in families])
    alike = shapes @ shapes.T >= ALIKE
    names = [f"{each.name.casefold()} " for each in families]
    alike |= np.array([[one.startswith(other) for other in names] for one in names])
    count, group = connected_components(csr_matrix(alike.astype(np.int8)), directed=False)
    return [
        [each for each, own in zip(families, group, strict=True) if own == number]
        for number in range(count)
    ]


def _design(family: Family) -> Floats:
    """The shapes of some letters in the family's first face, as one vector of unit length."""
    blank = [np.zeros((SIDE, SIDE), np.uint8)]
    return _unit(np.concatenate([family.shapes.get(each, blank)[0] for each in LETTERS]))


def _unit(shape: NDArray[Any]) -> Floats:
    vector = shape.ravel().astype(np.float64)
    return np.asarray(vector / max(1.0, float(np.linalg.norm(vector))))


def _without_symbols(families: list[Family]) -> list[Family]:
    """Leave out families that draw something else in the place of letters."""
    if not families:
        return []
    shapes = np.stack([_design(each) for each in families])
    usual = np.median(shapes, axis=0)
    usual /= max(1e-9, float(np.linalg.norm(usual)))
    return [
        each
        for each, own in zip(families, shapes @ usual, strict=True)
        if own >= MIN_MEDIAN_CORRELATION and _accents(each) >= MIN_ACCENT_CORRELATION
    ]


def _accents(family: Family) -> float:
    """How much letters with an accent resemble those without: the median correlation."""
    found = [
        float(_unit(family.shapes[one][0]) @ _unit(family.shapes[other][0]))
        for one, other in ACCENTED
        if one in family.shapes and other in family.shapes
    ]
    return float(np.median(found)) if found else 1.0
