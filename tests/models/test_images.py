"""Folders of pictures: every kind becomes the same array, and a bad file is named."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from support.wording import refuses
from terrine_models.data.arrays import DataError
from terrine_models.data.images import class_folders, load_image_classes, load_images, with_bits_of
from terrine_models.formats import load_private, load_public
from terrine_protocol.projects import ImageFormat
from terrine_server.cli.console import CommandError
from terrine_server.cli.reading import parse_images

GREY = ImageFormat(height=4, width=6, grey=True)
COLOUR = ImageFormat(height=4, width=6, grey=False)


def save(path: Path, array: Any, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(array)).save(path, **options)
    return path


@pytest.fixture
def plain() -> np.ndarray:
    return np.arange(24, dtype=np.uint8).reshape(4, 6) * 10


def test_a_picture_of_the_size_is_its_pixels_whatever_its_form(
    tmp_path: Path, plain: np.ndarray
) -> None:
    colours = np.stack([plain] * 3, axis=2)
    opaque = np.concatenate([colours, np.full((4, 6, 1), 255, np.uint8)], axis=2)
    save(tmp_path / "0.png", plain)
    save(tmp_path / "1.png", colours)
    save(tmp_path / "2.PNG", opaque)
    save(tmp_path / "3.png", plain.astype(np.uint16) * 257)
    turned = Image.Exif()
    turned[0x0112] = 3  # by 180 degrees
    save(tmp_path / "4.png", plain[::-1, ::-1], exif=turned)
    Image.fromarray(plain).convert("P").save(tmp_path / "5.png")
    found = load_images(tmp_path, GREY)
    assert found.dtype == np.uint8
    assert np.array_equal(found, [plain] * 6)
    assert np.array_equal(load_images(tmp_path, COLOUR), [colours] * 6)


@pytest.mark.parametrize(
    ("scale", "bits"), [(1, 8), (4, 10), (16, 12), (17, 12), (64, 14), (257, 16)]
)
def test_the_bits_of_deep_pictures_are_those_of_public_ones(
    tmp_path: Path, plain: np.ndarray, scale: int, bits: int
) -> None:
    private, public = tmp_path / "private", tmp_path / "public"
    deep = plain.astype(np.uint16) * scale
    for folder in (public / "a", public / "b", private / "a"):
        save(folder / "1.png", deep)
    save(private / "b" / "1.png", np.full((4, 6), 65535, np.uint16))
    save(private / "b" / "2.png", plain)
    records = load_private(private, classes=("a", "b"), image=GREY, public=public)
    labelled = load_public(public, records).labelled
    assert records.image == GREY.model_copy(update={"bits": bits})
    assert labelled is not None
    assert np.abs(records.inputs[0].astype(int) - deep / 2 ** (bits - 8)).max() < 1
    assert np.array_equal(labelled.inputs[0], records.inputs[0])
    assert (records.inputs[1] == 255).all(), "brighter than white"
    assert np.array_equal(records.inputs[2], plain), "8 bits are as they are"


def test_bits_may_be_declared_and_are_16_otherwise(tmp_path: Path, plain: np.ndarray) -> None:
    private, public = tmp_path / "private", tmp_path / "public"
    for name in ("a", "b"):
        save(private / name / "1.png", plain.astype(np.uint16) * 16)
    save(public / "1.png", plain)
    for images, bits, kept in (("4x6:grey", None, plain // 16), ("4x6:grey:12bit", 12, plain)):
        image = parse_images(images)
        records = load_private(private, classes=("a", "b"), image=image, public=public)
        assert records.image == GREY.model_copy(update={"bits": bits})
        assert np.array_equal(records.inputs[0], kept)
    assert "bits" not in GREY.model_dump_json(), "manifests without stay as they are"
    for images in ("4x6:7bit", "4x6:17bit", "4x6:bit"):
        with refuses(CommandError, images):
            parse_images(images)


def test_a_broken_public_picture_is_named_before_private_ones_are_read(tmp_path: Path) -> None:
    (tmp_path / "1.png").write_bytes(b"no picture")
    with refuses(DataError, "1.png"):
        with_bits_of(tmp_path, GREY)


def test_transparency_is_white_and_jpeg_is_read(tmp_path: Path) -> None:
    save(tmp_path / "a.png", np.zeros((9, 9, 4), np.uint8))
    save(tmp_path / "b.jpeg", np.full((40, 60), 90, np.uint8))
    save(tmp_path / "c.jpg", np.full((40, 60, 3), 90, np.uint8))
    clear, *others = load_images(tmp_path, GREY)
    assert (clear == 255).all()
    assert (np.abs(np.array(others).astype(int) - 90) <= 1).all()


def test_one_folder_is_one_class(tmp_path: Path, plain: np.ndarray) -> None:
    for name in ("dog/1.png", "cat/2.png", "cat/1.png"):
        save(tmp_path / name, plain + (name[0] == "d"))
    (tmp_path / "cat" / ".DS_Store").write_bytes(b"x")
    assert class_folders(tmp_path) == ["cat", "dog"]
    data = load_image_classes(tmp_path, GREY, classes=["cat", "dog"])
    assert (data.classes, data.labels.tolist()) == (("cat", "dog"), [0, 0, 1])
    assert data.image == GREY
    assert data.spec.shape == (4, 6)
    listed = load_image_classes(tmp_path, GREY, classes=["owl", "dog", "cat"])
    assert (listed.classes, listed.labels.tolist()) == (("owl", "dog", "cat"), [1, 2, 2])
    with refuses(DataError, "dog", "cat"):
        load_image_classes(tmp_path, GREY, classes=["cat", "owl"])
    with refuses(DataError, "'cat'"):
        load_images(tmp_path, GREY)
    save(tmp_path / "loose.png", plain)
    with refuses(DataError, "loose.png"):
        load_image_classes(tmp_path, GREY, classes=["cat", "dog"])


def bomb() -> bytes:
    """A PNG of 400 bytes that claims 30,000 × 30,000 pixels."""
    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(300_000))), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def test_a_bad_file_is_named(tmp_path: Path, plain: np.ndarray) -> None:
    whole = save(
        tmp_path / "ok" / "ok.png", np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8)
    )
    content = whole.read_bytes()
    gif = tmp_path / "x.gif"
    Image.fromarray(plain).save(gif)
    broken = {
        "cut.png": content[: len(content) // 2],
        "empty.jpg": b"",
        "text.png": b"hello",
        "flipped.png": content[:60] + bytes(40) + content[100:],
        "gif.png": gif.read_bytes(),
    }
    for name, data in broken.items():
        path = tmp_path / name.replace(".", "-") / name
        path.parent.mkdir()
        path.write_bytes(data)
        with refuses(DataError, name, "PNG", "JPEG"):
            load_images(path.parent, GREY)
    huge = tmp_path / "huge" / "huge.png"
    huge.parent.mkdir()
    huge.write_bytes(bomb())
    with refuses(DataError, "huge.png"):
        load_images(huge.parent, GREY)
    (huge.parent / "readme.txt").write_text("x")
    with refuses(DataError, "readme.txt"):
        load_images(huge.parent, GREY)
    (tmp_path / "none").mkdir()
    with refuses(DataError, "pictures"):
        load_images(tmp_path / "none", GREY)
    with refuses(DataError, "nowhere"):
        load_images(tmp_path / "nowhere", GREY)
