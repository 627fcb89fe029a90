"""Arrays and folders of pictures on the command line: what `terrine ensemble train` reads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from terrine_server.cli.console import fail
from terrine_server.cli.tables import note, split

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from terrine_models.data import Dataset
    from terrine_models.features import PublicData
    from terrine_protocol.images import ImageFormat

ImageSize = Annotated[
    str | None,
    typer.Option(
        metavar="HxW",
        help="For folders of PNG and JPEG files: the height and width that each is converted to.",
    ),
]
Grey = Annotated[
    bool, typer.Option("--grey", help="For folders of pictures: convert them to grey.")
]


@dataclass(frozen=True)
class Arrays:
    """The options that say how arrays and pictures are read."""

    public: Path | None
    labels: Path | None
    classes: str | None
    image_size: str | None
    grey: bool


def class_names(classes: str | None) -> list[str] | None:
    """Return the classes that --classes names, or numbers."""
    names = split(classes)
    if names and len(names) == 1 and names[0].isdigit():
        return [str(i) for i in range(int(names[0]))]
    return names


def load(data: Path, options: Arrays) -> tuple[Dataset, PublicData | None]:
    """Return the private records, and the public inputs if --public is given."""
    from terrine_models.data import DIGITS, load_idx, load_inputs, load_npz
    from terrine_models.features import PublicData
    from terrine_models.images import load_image_classes, load_images

    names, image = class_names(options.classes), image_format(options.image_size, options.grey)
    if image is not None:
        if options.labels is not None or not data.is_dir():
            fail("--image-size is for a folder of pictures, with one folder for each class.")
        private = load_image_classes(data, image, classes=names)
        if names is None:
            note(
                f"The classes, which are public, are the folders of {data}: "
                f"{', '.join(private.classes)}."
            )
    elif data.suffix == ".npz":
        if options.labels is not None:
            fail("--labels is for IDX images; an .npz has its labels in y.")
        private = load_npz(data, classes=names)
    else:
        private = load_idx(data, options.labels, classes=names or DIGITS)
    if options.public is None:
        return private, None
    inputs: npt.NDArray[np.generic]
    if image is not None and options.public.is_dir():
        inputs = load_images(options.public, image)
    else:
        inputs = load_inputs(options.public)
    return private, PublicData.declare(options.public.name, inputs)


def image_format(size: str | None, grey: bool) -> ImageFormat | None:
    """Return the format of `--image-size HxW [--grey]`; None if there is none."""
    from pydantic import ValidationError

    from terrine_protocol.images import ImageFormat

    if size is None:
        return fail("--grey goes with --image-size.") if grey else None
    found = re.fullmatch(r"(\d{1,4})x(\d{1,4})", size)
    if found is not None:
        try:
            return ImageFormat(height=int(found[1]), width=int(found[2]), grey=grey)
        except ValidationError:
            pass
    return fail(f"--image-size is height x width, from 1x1 to 1024x1024, as in 28x28; not {size}.")
