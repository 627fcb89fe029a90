"""Data on the command line: options that say what is in files, and whoever is asked about them."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from terrine_models.formats import join_names, number_classes
from terrine_models.tables.proposal import SchemaProposal
from terrine_protocol.base import normalize
from terrine_protocol.names import find_unshown
from terrine_protocol.projects import ImageFormat
from terrine_server.cli.console import console, errors, fail, say
from terrine_server.quickstart.dialogue import (
    Described,
    Given,
    Question,
    SchemaAlone,
    Stated,
    join_numbers,
)
from terrine_tables.columns import parse_number

AcceptClipped = Annotated[
    bool,
    typer.Option(
        "--accept-clipped",
        help="Go on although more than a tenth of a table's column is outside the range of the "
        "schema, or missing, or all of it is. Labels of such rows are charged as any other.",
    ),
]
Classes = Annotated[
    str | None,
    typer.Option(
        metavar="N|A,B,…",
        help="Classes of IDX or .npz data: their number or their names. IDX default: 10. Of "
        "pictures, by default the folders of --public, if it has any. Of a table, a schema has "
        """them. A name with a comma stands in quotes: '"yes, mild",no'.""",
    ),
]
Images = Annotated[
    str | None,
    typer.Option(
        metavar="HxW[:grey][:Nbit]",
        help="For folders of PNG and JPEG files: the height and width that each is converted to, "
        "as 28x28 or, in grey, 28x28:grey. Of grey PNGs of 16 bits, N are used: as many as by "
        "those of --public, else 16.",
    ),
]
Schema = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Public schema of a table: `terrine ensemble schema`, of a public table or with "
        "--declare. Its column of the role group says whose a row is.",
    ),
]
Bins = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,…",
        help="Of a table: cut the numbers of the column to predict into classes, at these edges, "
        "all of it public: 100,250 makes three.",
    ),
]
Group = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", help="Of a table: the column that names whose a row is, if several."
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(metavar="A,B,…", help="Names of the columns of CSV files without a header."),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN", help="Of a table: a column to leave out. May be repeated."),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN", help="Of a table: a column to use as a feature. May be repeated."
    ),
]


def note(sentence: str) -> None:
    """Print how a file was read."""
    say(sentence)


def note_aside(sentence: str) -> None:
    """Print how a file was read on stderr, where stdout has the data."""
    say(sentence, to=errors)


def split_names(text: str | None) -> list[str] | None:
    """Split A,B,… into its parts, in Unicode NFC. As in CSV, quotes surround one with a comma."""
    if text is None:
        return None
    try:
        (parts,) = csv.reader([text], skipinitialspace=True, strict=True)
    except (csv.Error, ValueError):
        parts = []
    if not parts:
        fail(
            f"{text!r} is not a list of names: a name with a comma stands in double quotes, as in "
            """--classes '"yes, mild",no', and a double quote inside it is written twice."""
        )
    if wrong := find_unshown(parts):
        fail(f"Of the names that are listed, {wrong}.")
    return [normalize(part.strip()) for part in parts]


def parse_bins(text: str | None) -> list[float] | None:
    """Parse --bins A,B,…: increasing numbers."""
    if text is None:
        return None
    found = [parse_number(part.strip()) for part in text.split(",")]
    if not all(map(math.isfinite, found)) or any(a >= b for a, b in pairwise(found)):
        fail(
            "--bins takes the edges between classes, different numbers from the least to the "
            f"greatest, such as 100,250; not {text}."
        )
    return found


def parse_classes(classes: str | None) -> Sequence[str] | None:
    """Return the classes that --classes names, or numbers."""
    names = split_names(classes)
    return None if names is None else number_classes(names)


def parse_images(text: str | None) -> ImageFormat | None:
    """Return the format that `--images` states, if it is given."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,4})x(\d{1,4})(:grey)?(?::(\d{1,2})bit)?", text)
    if found is not None:
        try:
            return ImageFormat(
                height=int(found[1]),
                width=int(found[2]),
                grey=bool(found[3]),
                bits=None if found[4] is None else int(found[4]),
            )
        except ValidationError:
            pass
    return fail(
        "--images is height x width, from 1x1 to 1024x1024, as in 28x28, 28x28:grey or "
        f"28x28:grey:12bit (8 to 16); not {text}."
    )


def classes_text(classes: Sequence[str]) -> str:
    """Write classes as --classes takes them."""
    count = str(len(classes))
    return count if number_classes([count]) == [*classes] else join_names(classes)


def images_text(image: ImageFormat) -> str:
    """Write a format of pictures as --images takes it."""
    grey, bits = ":grey" if image.grey else "", "" if image.bits is None else f":{image.bits}bit"
    return f"{image.height}x{image.width}{grey}{bits}"


def data_options(given: Given) -> list[object]:
    """Return the options that say what `given` does, --public first."""
    if isinstance(given, SchemaAlone):
        return ["--schema", given.schema]
    if isinstance(given, Stated):
        return ["--public", given.public, "--schema", given.schema]
    return ["--public", given.public, *_table_options(given), *_format_options(given)]


def _table_options(given: Described) -> list[object]:
    named = {
        "--label": given.label,
        "--group": given.group,
        "--columns": given.columns and join_names(given.columns),
        "--bins": given.bins and join_numbers(given.bins),
    }
    ignored = [word for name in given.ignore for word in ("--ignore", name)]
    kept = [word for name in given.keep for word in ("--keep", name)]
    return [*_options(named), *ignored, *kept]


def _format_options(given: Described) -> list[object]:
    """Return the options that say how arrays and pictures are read."""
    return _options(
        {
            "--classes": given.classes and classes_text(given.classes),
            "--images": given.image and images_text(given.image),
        }
    )


def _options(given: Mapping[str, object]) -> list[object]:
    return [word for option, value in given.items() if value for word in (option, value)]


class Terminal:
    """Somebody at a terminal who is asked, unless it was said that nobody is to be."""

    console = console

    def __init__(self, *, is_asked: bool = True) -> None:
        self.is_asked = is_asked

    def agrees(self, question: Question) -> bool | None:
        """Ask for yes or no."""
        return typer.confirm(question.text) if self.is_asked else None

    def answer(self, question: Question) -> str | None:
        """Ask until there is an answer, and one of the options if there are any."""
        if not self.is_asked:
            return None
        text, default, options = question.text, "", question.options
        if options:
            text, default = f"{text} ({', '.join(options)})", options[0]
        while True:
            said = str(typer.prompt(text, default, show_default=bool(options))).strip()
            if options and said not in options:
                say(f"  {said} is not one of these.")
            elif said or question.optional:
                return said
            else:
                say("  Nothing was given: this question needs an answer.")

    def list_names(self, question: Question) -> Sequence[str] | None:
        """Ask for names, as A,B,…."""
        return split_names(self.answer(Question(f"{question.text} (A,B,…)")))

    def say(self, sentence: str) -> None:
        """Print it."""
        say(sentence)

    def note(self, sentence: str) -> None:
        """Print it, too."""
        say(sentence)

    def read_proposal(self, proposal: SchemaProposal, public: Path, out: Path) -> None:
        """Leave a proposal unshown: commands show what they write."""
