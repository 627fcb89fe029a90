"""Ensembles on disk: safetensors files and one `manifest.json` with their digests.

A directory holds `manifest.json`, optionally `features.safetensors` (the public feature map) and
`teachers-00000.safetensors`, … (the parameters of consecutive teachers, stacked along axis 0).
Teachers that were trained elsewhere are `teachers-00000.onnx`, …, one in each file. The manifest
names every file with its SHA-256, so its own digest identifies the whole ensemble. Nothing is
pickled, and nothing of the training data is stored but keyed digests of who is in them.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

import numpy as np
from pydantic import ConfigDict, Field, ValidationError, model_validator
from safetensors import SafetensorError
from safetensors.numpy import save as render_safetensors

from terrine_protocol.base import Record, Sha256, absent, first_problem
from terrine_protocol.errors import TerrineError
from terrine_protocol.files import read, write_atomically
from terrine_protocol.schema import PublicSource

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

T = TypeVar("T")
# Of the manifests that are written. Its number grows when earlier code could not read them; those
# of earlier numbers are converted when they are read. A manifest that names none is of the first.
FORMAT: Literal["terrine-ensemble-1"] = "terrine-ensemble-1"
MANIFEST_FILE = "manifest.json"
FEATURES_FILE = "features.safetensors"
BACKBONE_FILE = "backbone.onnx"
# What students ask, where the owner designed it. Public.
POOL_FILE = "pool.npz"
# Who is in each slot, and who was forgotten: keyed digests. Only of people who have names.
IDENTITIES_FILE = "identities.safetensors"
# Bytes. A larger manifest is refused unread.
MAX_MANIFEST_BYTES = 16 * 2**20

# Of settings, which are checked when they are made.
SETTINGS_CONFIG = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9_-]{0,62}[a-z0-9])?$")]
FileName = Annotated[
    str, Field(pattern=r"^[a-z0-9][a-z0-9-]*\.(safetensors|onnx|npz)$", max_length=100)
]


class StoreError(TerrineError):
    """An ensemble's files are missing, malformed or altered; the message names the file."""


class PublicModel(Record):
    """A model that its owner declared public: nobody's private records trained it."""

    name: str
    sha256: Sha256
    width: Annotated[int, Field(ge=1, description="Numbers in each embedding.")]


class FeatureSpec(Record):
    """A public feature map. `fitted_on` is null for a data-independent one."""

    base: Literal[
        "oriented_gradients", "coloured_gradients", "identity", "bins", "texts", "backbone"
    ]
    projection: Literal[
        "graph", "pca", "nystrom", "discriminant", "random", "scaled", "whitened", "none"
    ]
    components: Annotated[int, Field(ge=1, description="Numbers from the projection.")]
    coordinates: Annotated[int, Field(ge=0, description="Numbers from the graph.")] = 0
    points: Annotated[int, Field(ge=0, description="Public points in the graph.")] = 0
    landmarks: Annotated[int, Field(ge=0, description="Public points of a Nyström map.")] = 0
    gamma: Annotated[float, Field(gt=0, description="Of its kernel exp(-gamma d²).")] | None = None
    steps: Annotated[int, Field(ge=0, description="Of bins: steps at public quantiles.")] = 0
    ranks: Annotated[int, Field(ge=0, description="Of bins: ranks among public rows.")] = 0
    texts: Annotated[
        tuple[int, ...] | None,
        Field(description="Of rows with texts: components of each block.", exclude_if=absent),
    ] = None
    seed: Annotated[int, Field(ge=0, description="Of the random projection.")] = 0
    fitted_on: PublicSource | None = None
    backbone: PublicModel | None = None

    @model_validator(mode="after")
    def _is_coherent(self) -> Self:
        if (self.base == "backbone") != (self.backbone is not None):
            raise ValueError("backbone, and no other base, names a public model")
        fitted = self.projection not in ("random", "none")
        if fitted != (self.fitted_on is not None):
            raise ValueError("random and none, and no other projection, are fitted on nothing")
        if (self.base in ("bins", "texts")) != (self.projection in ("scaled", "whitened")):
            raise ValueError("bins and texts, and no other base, are scaled or whitened")
        if self.base != "texts" and (self.base == "bins") != (self.steps + self.ranks > 0):
            raise ValueError("bins, and no other base without texts, have steps or ranks")
        if (self.base == "texts") != (self.texts is not None):
            raise ValueError("texts, and no other base, have components of texts")
        if min(self.texts or (1,)) < 1 or sum(self.texts or ()) > self.components:
            raise ValueError("components of texts are from 1, and some of all components")
        graph = self.points > 0 and self.coordinates > 0
        if self.base != "texts" and (self.projection == "graph") != graph:
            raise ValueError("a graph, and no other projection, has points and coordinates")
        if (self.points > 0) != (self.coordinates > 0):
            raise ValueError("a graph has points and coordinates")
        if (self.projection == "nystrom") != (self.landmarks > 0 and self.gamma is not None):
            raise ValueError("nystrom, and no other projection, has landmarks and gamma")
        return self

    @property
    def width(self) -> int:
        """Numbers per input."""
        return self.landmarks or self.components + self.coordinates


class Partition(Record):
    """How records were partitioned among teachers (see `shards.partition_records`).

    Of neighbours, whose units vote themselves: that people are the units, one to a shard.
    """

    recipe: Literal["rows", "groups"]
    seed: Annotated[int, Field(ge=0)]
    group_column: str | None = None
    smallest: Annotated[int, Field(ge=1, description="Rows or groups in the smallest shard.")]
    largest: Annotated[int, Field(ge=1, description="Rows or groups in the largest shard.")]


def sha256(data: bytes) -> str:
    """SHA-256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


@cache
def package_version(name: str) -> str:
    """Version of an installed package. Its metadata are read once: that takes 10 ms."""
    return version(name)


def versions(*others: str) -> dict[str, str]:
    """Versions of Terrine and the packages that training depends on; `others` besides."""
    usual = ("numpy", "safetensors", "terrine", "torch")
    return {package: package_version(package) for package in (*usual, *others)}


def manifest_digest(directory: Path) -> str:
    """SHA-256 of `manifest.json`: the identity of the ensemble. Raises StoreError."""
    return sha256(manifest_bytes(Path(directory)))


def load_tensors(directory: Path, name: str, digest: str) -> dict[str, torch.Tensor]:
    """The tensors of one file, read once: the bytes parsed are the bytes verified.

    Raises StoreError when the file is missing, altered or not a safetensors file.
    """
    from safetensors.torch import load as parse_safetensors

    return _read_parsed(parse_safetensors, Path(directory), name, digest)


def load_arrays(directory: Path, name: str, digest: str) -> dict[str, NDArray[Any]]:
    """The same as arrays, without PyTorch."""
    from safetensors.numpy import load as parse_safetensors

    return _read_parsed(parse_safetensors, Path(directory), name, digest)


def _read_parsed(parse: Callable[[bytes], T], directory: Path, name: str, digest: str) -> T:
    data = read_verified(directory, name, digest)
    try:
        return parse(data)
    except (SafetensorError, KeyError) as error:  # of a type that NumPy lacks
        raise StoreError(f"{directory / name} is not a safetensors file: {error}") from None


def read_verified(directory: Path, name: str, digest: str) -> bytes:
    """The bytes of one file. Raises StoreError when it is missing or altered."""
    path = directory / name
    try:
        data = read(path, None)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None
    found = sha256(data)
    if found != digest:
        raise StoreError(
            f"{path} was altered: its SHA-256 is {found}, the manifest says {digest}. "
            "Restore the file from a backup, or train or import the ensemble again."
        )
    return data


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor | NDArray[Any]]) -> str:
    """Write a safetensors file, completely or not at all, and return its SHA-256.

    The file contains a random salt. Students see a digest of digests of such files, and training
    is deterministic: without the salt, whoever knew all records but one could retrain with every
    candidate for the last one and compare digests.
    """
    arrays = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    data = render_safetensors(arrays, metadata={"salt": secrets.token_hex(32)})
    write_atomically(path, data)
    return sha256(data)


def document_bytes(path: Path, kind: str, expected: str) -> bytes:
    """The bytes of a manifest or federation. Raises StoreError, saying what is `expected`."""
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise StoreError(f"{path} is larger than {MAX_MANIFEST_BYTES} bytes: not a {kind}")
        return read(path, MAX_MANIFEST_BYTES)
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror}); expected {expected}") from None


def manifest_bytes(directory: Path) -> bytes:
    """The bytes of `manifest.json`. Raises StoreError."""
    made = "the directory of an ensemble, as made by `terrine ensemble train`"
    return document_bytes(directory / MANIFEST_FILE, "manifest", made)


def unreadable(path: Path, data: bytes, newest: str, error: ValidationError) -> StoreError:
    """Say why a manifest or federation cannot be read, by which Terrine it was made, what to do.

    `newest`: the format that is written here.
    """
    try:
        document = json.loads(data)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        return StoreError(f"{path} is malformed {first_problem(error)}")
    stated, made_by = document.get("format", newest), document.get("versions")
    terrine = made_by.get("terrine") if isinstance(made_by, dict) else None
    maker = f"Terrine {terrine}" if isinstance(terrine, str) else "a Terrine that it does not name"
    wrong = f"is malformed {first_problem(error)}"
    if isinstance(stated, str) and stated != newest:
        wrong = f"has the format {stated!r}, expected {newest!r} or an earlier one"
    return StoreError(
        f"{path} {wrong}. It was made by {maker}, and this is Terrine {version('terrine')}. Unless "
        "it was edited, serve it with the version that made it, or make the ensemble again with "
        "this one (docs/upkeep.md)."
    )
