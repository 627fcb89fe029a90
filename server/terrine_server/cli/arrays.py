"""Arrays and folders of pictures on the command line: what `terrine ensemble train` reads."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from terrine_server.cli.console import fail
from terrine_server.cli.tables import join, note, split

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from terrine_models.data.arrays import Dataset
    from terrine_models.features.maps import PublicData
    from terrine_protocol.images import ImageFormat

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


@dataclass(frozen=True)
class Arrays:
    """The options that say how arrays and pictures are read."""

    public: Path | None
    classes: str | None
    images: str | None


def class_names(classes: str | None) -> list[str] | None:
    """Return the classes that --classes names, or numbers."""
    names = split(classes)
    if names and len(names) == 1 and names[0].isdecimal():
        return [str(i) for i in range(int(names[0]))]
    return names


def load(data: Path, options: Arrays) -> tuple[Dataset, PublicData | None, Dataset | None]:
    """Return the private records, and if --public is given the public ones.

    The latter twice: as inputs, and with their labels if they have any.
    """
    from terrine_models.data.arrays import DIGITS, load_idx, load_npz
    from terrine_models.data.blocks import remark_on_people
    from terrine_models.data.images import load_image_classes, with_bits_of
    from terrine_models.features.maps import PublicData

    names, image = class_names(options.classes), image_format(options.images)
    if image is not None:
        if not data.is_dir():
            fail("--images is for a folder of pictures, with one folder for each class.")
        if image.bits is None and options.public is not None and options.public.is_dir():
            image = with_bits_of(options.public, image)
        private = load_image_classes(data, image, classes=names or _folders(data, options.public))
    elif data.suffix.lower() == ".npz":
        private = load_npz(data, classes=names)
    else:
        private = load_idx(data, classes=names or DIGITS)
    if private.people and (told := remark_on_people(private.people, f"{data}: array group")):
        note(told)
    if options.public is None:
        return private, None, None
    inputs, labelled = _public(options.public, private, image)
    groups = None if labelled is None else labelled.groups
    labels = None if labelled is None else labelled.labels
    return private, PublicData.declare(options.public.name, inputs, groups, labels), labelled


def _folders(data: Path, public: Path | None) -> list[str]:
    """Return the classes that the folders of public pictures name."""
    from terrine_models.data.images import class_folders

    if public is not None and public.is_dir() and (names := class_folders(public)):
        note(f"The classes are the folders of {public}: {', '.join(names)}.")
        return names
    return fail(
        "Classes are public, and the folders of private pictures are not: a single person may have "
        f"made one. Declare the classes. {data} has folders for these, and if all of them may be "
        f"known: --classes {shlex.quote(join(class_folders(data)))}"
    )


def _public(
    path: Path, private: Dataset, image: ImageFormat | None
) -> tuple[npt.NDArray[np.generic], Dataset | None]:
    from terrine_models.data.arrays import DataError, load_idx, load_inputs, load_labelled
    from terrine_models.data.images import load_image_classes, load_images

    if path.is_dir():
        if image is not None and not any(each.is_dir() for each in path.iterdir()):
            return load_images(path, image), None
        whole = (
            load_idx(path, classes=private.classes)
            if image is None
            else load_image_classes(path, image, classes=private.classes)
        )
        return whole.inputs, whole
    inputs = load_inputs(path)
    if path.suffix.lower() != ".npz":
        return inputs, None
    try:
        return inputs, load_labelled(path, private)
    except DataError as error:
        note(f"How far teachers will agree is not estimated, without public labels: {error}")
        return inputs, None


def image_format(text: str | None) -> ImageFormat | None:
    """Return the format of `--images HxW[:grey][:Nbit]`; None if there is none."""
    from pydantic import ValidationError

    from terrine_protocol.images import ImageFormat

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
