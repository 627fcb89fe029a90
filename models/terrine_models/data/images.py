"""Folders of PNG and JPEG files: one folder a class for labelled data, a flat folder for a pool.

Owner and students convert by the same `ImageFormat`, so that the same picture is the same input.
Needs Pillow, which is in the extras student and server.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrine_models.data.arrays import DataError, Dataset, InputSpec
from terrine_protocol.base import normalize
from terrine_protocol.files import open_regular_file
from terrine_protocol.projects import ImageFormat

PICTURE_SUFFIXES = {".png", ".jpg", ".jpeg"}
# A picture with more is not unpacked: a small file may hold a very large one.
MAX_PIXELS = 50_000_000
# What Pillow raises for files that are none, or not whole.
PILLOW_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error)


def class_folders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder of public pictures, sorted.

    Of private pictures they are not public: one person's alone may have made a folder.
    """
    return sorted(normalize(path.name) for path in _visible(Path(folder)) if path.is_dir())


def load_image_classes(folder: Path, image: ImageFormat, *, classes: Sequence[str]) -> Dataset:
    """Load pictures from one folder for each class.

    `classes`: all classes, in their order; they become public. Raises DataError, which names the
    file.
    """
    folder, names = Path(folder), tuple(map(normalize, classes))
    folders = dict[str, Path]()
    for path in _visible(folder):
        if path.is_dir() and (twin := folders.setdefault(normalize(path.name), path)) != path:
            raise DataError(
                f"{folder} has two folders named {normalize(path.name)!r}, one of which spells a "
                f"letter by two characters: move the pictures of {path} into {twin}."
            )
    unknown = sorted(folders.keys() - set(names))
    if not folders or unknown:
        found = f"the folder {unknown[0]!r}" if unknown else "no folders"
        expected = ", ".join(names)
        raise DataError(
            f"{folder} holds {found}; expected folders named after classes: {expected}."
        )
    if loose := [path for path in _visible(folder) if not path.is_dir()]:
        raise DataError(f"{loose[0]} is in no class: move it to the folder of one.")
    files = [
        (path, label)
        for label, name in enumerate(names)
        if name in folders
        for path in _pictures(folders[name])
    ]
    if not files:
        raise DataError(f"{folder} holds no pictures, in folders named after classes.")
    return Dataset(
        _convert([path for path, _ in files], image),
        np.array([label for _, label in files], dtype=np.int64),
        names,
        InputSpec(shape=image.shape, dtype="uint8", low=0, high=255),
        image=image,
        name=str(folder),
    )


def load_images(folder: Path, image: ImageFormat) -> NDArray[np.uint8]:
    """Load the pictures of a flat folder, ordered by name, as inputs [N, H, W] or [N, H, W, 3].

    `client.project().ensemble.image` is the format that a project expects. Raises DataError, which
    names the file.
    """
    return _convert(list_images(folder), image)


def list_images(folder: Path) -> list[Path]:
    """The files that `load_images` reads, in their order. Raises DataError."""
    folder = Path(folder)
    below = [path for path in _visible(folder) if path.is_dir()]
    if below:
        raise DataError(
            f"{folder} holds the folder {below[0].name!r}; unlabelled pictures are expected in one "
            "flat folder."
        )
    files = _pictures(folder)
    if not files:
        raise DataError(f"{folder} holds no pictures (PNG or JPEG); a table is one file.")
    return files


def with_bits_of(folder: Path, image: ImageFormat) -> ImageFormat:
    """Return the format with the bits that grey PNGs of 16 bits use, of those in a public folder.

    Many hold the 8, 10, 12 or 14 bits of a scanner or camera, and would be black if all 16 counted.
    The folder is flat, or has one for each class. Never of private pictures: the bits are public.
    Raises DataError, which names the file.
    """
    library, most = _library(Path(folder)), 0
    for each in _visible(Path(folder)):
        for path in _pictures(each) if each.is_dir() else [each]:
            with _open_picture(library, path) as picture:
                if _is_deep(picture):
                    most = max(most, int(np.asarray(picture).max()))
    if most == 0:
        return image
    bits = min(16, max(8, most.bit_length() + most.bit_length() % 2))
    return image.model_copy(update={"bits": bits})


def _visible(folder: Path) -> list[Path]:
    try:
        found = sorted(folder.iterdir())
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}.") from None
    return [path for path in found if path.name[0] != "." and path.name != "Thumbs.db"]


def _pictures(folder: Path) -> list[Path]:
    for path in (files := _visible(folder)):
        if path.suffix.lower() not in PICTURE_SUFFIXES:
            raise DataError(f"{path}: expected only files named .png, .jpg or .jpeg here.")
    return files


def _convert(files: Sequence[Path], image: ImageFormat) -> NDArray[np.uint8]:
    library = _library(files[0])
    inputs = np.empty((len(files), *image.shape), dtype=np.uint8)
    for row, path in enumerate(files):
        inputs[row] = _picture(library, path, image)
    return inputs


def _library(path: Path) -> Any:
    try:
        import PIL.Image
    except ImportError:
        raise DataError(
            f"{path} is a picture; reading it needs Pillow. In a checkout: pip install '.[student]'"
        ) from None
    return PIL.Image


@contextmanager
def _open_picture(library: Any, path: Path) -> Iterator[Any]:
    """Open a picture that is not too large; whatever Pillow raises within becomes a DataError."""
    try:
        with (
            open_regular_file(path) as file,
            library.open(file, formats=("PNG", "JPEG")) as picture,
        ):
            if picture.width * picture.height > MAX_PIXELS:
                raise DataError(
                    f"{path} unpacks to {picture.width} × {picture.height} pixels, more than "
                    f"{MAX_PIXELS:,}. Make it smaller first."
                )
            yield picture
    except (*PILLOW_ERRORS, library.DecompressionBombError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DataError(f"{path} cannot be read as a PNG or JPEG picture: {reason}.") from None


def _is_deep(picture: Any) -> bool:
    """Whether a picture is grey with 16 bits."""
    return bool(picture.mode.startswith("I"))


def _picture(library: Any, path: Path, image: ImageFormat) -> NDArray[np.uint8]:
    from PIL import ImageOps

    with _open_picture(library, path) as picture:
        picture = ImageOps.exif_transpose(picture)
        if _is_deep(picture):  # converting would keep the low bits
            high = np.asarray(picture).astype(np.int64) >> ((image.bits or 16) - 8)
            picture = library.fromarray(high.clip(0, 255).astype(np.uint8))
        if picture.has_transparency_data:
            picture = picture.convert("RGBA")
            white = library.new("RGBA", picture.size, "white")
            picture = library.alpha_composite(white, picture)
        picture = picture.convert("L" if image.grey else "RGB")
        size, scale = (image.width, image.height), library.Resampling.BILINEAR
        return np.asarray(picture.resize(size, scale))
