"""Ensembles whose teachers stay with their owners: who they are and how they are asked.

A directory holds `federation.json` in place of a manifest and weights, and may hold the
certificates that owners are known by (`OWNER.pem`) and the tokens that they ask for (`OWNER.token`,
not part of the federation, so that they can be replaced). The federation is fixed once the ensemble
is registered: its digest identifies the ensemble.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator

from terrine_models.data.arrays import InputSpec
from terrine_models.storage.manifests import (
    Name,
    StoreError,
    document_bytes,
    read_verified,
    sha256,
    unreadable,
)
from terrine_models.teachers.kinds import EnsembleFormat
from terrine_protocol import EnsembleFacts
from terrine_protocol import InputSpec as SentInputSpec
from terrine_protocol.base import Record, Sha256, first_problem
from terrine_protocol.files import read, write_atomically

FEDERATION = "federation.json"
# As that of manifests.
FORMAT: Literal["terrine-federation-1"] = "terrine-federation-1"
LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")
LARGEST_TOKEN = 4096

Tensor = Annotated[str, Field(min_length=1, max_length=200)]


class Owner(Record):
    """One owner, who casts one vote with a model of their own, and their server."""

    name: Name
    url: Annotated[str, Field(max_length=2000)]
    certificate: Sha256 | None = None
    """Of `NAME.pem`: the only certificates that this server is trusted by."""
    model: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")]
    input: Tensor = "input"
    """Name of the model's input tensor."""
    output: Tensor | None = None
    """Name of the output tensor with labels or scores; null for the only one."""
    binary: bool = False
    """Whether inputs are sent as bytes (the protocol's binary extension), which is faster."""

    @model_validator(mode="after")
    def _url_is_safe(self) -> Self:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise ValueError(f"{self.url!r} is not the URL of a server")
        if parts.scheme == "http" and parts.hostname not in LOCAL_HOSTS:
            raise ValueError(f"{self.url!r}: votes cross a network only over https")
        if parts.scheme == "http" and self.certificate is not None:
            raise ValueError(f"{self.url!r}: a certificate is for https")
        return self


class Federation(Record):
    """Everything about such an ensemble; all of it is public except the addresses."""

    format: Literal["terrine-federation-1"] = FORMAT
    name: Name
    input: InputSpec
    classes: Annotated[
        tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=2, max_length=10_000)
    ]
    owners: Annotated[tuple[Owner, ...], Field(min_length=2, max_length=10_000)]
    units: Annotated[int, Field(ge=1, description="Of all owners together, as they state.")]
    disjoint_by: Annotated[str, Field(min_length=1, max_length=500)]
    """How no person's records are with two owners, in the owners' words."""
    timeout_seconds: Annotated[float, Field(gt=0, le=60)] = 2.0
    """An owner whose answer has not come by then casts no vote on that batch."""
    quorum: Annotated[int, Field(ge=1)]
    """Owners that must answer; with fewer, nothing is answered and nothing charged."""
    aggregator: Annotated[None, Field(exclude=True)] = None
    """Earlier releases wrote here by which second server votes were added up, or null."""
    salt: Sha256
    """Random. Students see the federation's digest, and must not find out addresses by guessing."""

    @field_validator("aggregator", mode="before")
    @classmethod
    def _has_no_aggregator(cls, given: object) -> None:
        if given is not None:
            raise ValueError(
                "votes are no longer added up by a second server. If the owners agree that this "
                "service sees them, gather the owners from a file without [aggregator]"
            )

    @model_validator(mode="after")
    def _is_coherent(self) -> Self:
        names = [owner.name for owner in self.owners]
        if len(set(names)) < len(names):
            raise ValueError("owners must have different names")
        if len({(owner.url.rstrip("/"), owner.model) for owner in self.owners}) < len(names):
            raise ValueError("two owners have the same model at the same URL: one would vote twice")
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("classes must have different names")
        if self.quorum > len(names):
            raise ValueError(f"a quorum of {self.quorum} is more than the {len(names)} owners")
        return self


def federation_digest(directory: Path) -> str:
    """SHA-256 of `federation.json`: the identity of the ensemble. Raises StoreError."""
    return sha256(_federation_bytes(Path(directory)))


def read_federation(directory: Path) -> Federation:
    """Read and check `federation.json`. Raises StoreError."""
    directory = Path(directory)
    data = _federation_bytes(directory)
    try:
        return Federation.model_validate_json(data)
    except ValidationError as error:
        if any(each["loc"] == ("aggregator",) for each in error.errors()):
            raise StoreError(
                f"{directory / FEDERATION}: {first_problem(error)}, under another name, and close "
                "the projects of this ensemble."
            ) from None
        raise unreadable(directory / FEDERATION, data, FORMAT, error) from None


def load_federation(directory: Path) -> Federation:
    """Read a federation, and check the certificates that it names, too. Raises StoreError."""
    federation = read_federation(directory)
    for owner in federation.owners:
        if owner.certificate is not None:
            read_verified(Path(directory), f"{owner.name}.pem", owner.certificate)
    return federation


class Federations(EnsembleFormat):
    """Directories that hold a federation in place of a manifest and weights."""

    document = FEDERATION
    has_manifest = False

    def load(self, directory: Path) -> Federation:
        """Read and check `federation.json`. Raises StoreError."""
        return read_federation(directory)

    def facts(self, directory: Path) -> tuple[int, EnsembleFacts]:
        """How many units all owners have together, and what students see of the ensemble."""
        federation = load_federation(directory)
        return federation.units, EnsembleFacts(
            kind="remote",
            input=SentInputSpec.model_validate(federation.input),
            classes=list(federation.classes),
            teachers=len(federation.owners),
            disjoint_by=federation.disjoint_by,
        )

    def digest(self, directory: Path) -> str:
        """SHA-256 of `federation.json`. Raises StoreError."""
        return federation_digest(directory)

    def verify(self, directory: Path) -> None:
        """Check the certificates. Raises StoreError."""
        load_federation(directory)


def save_federation(directory: Path, federation: Federation) -> None:
    """Write `federation.json`, completely or not at all."""
    data = federation.model_dump_json(indent=2).encode() + b"\n"
    write_atomically(Path(directory) / FEDERATION, data)


def owner_token(directory: Path, owner: Owner) -> str | None:
    """The token that an owner's server asks for, or None. Raises StoreError."""
    path = Path(directory) / f"{owner.name}.token"
    return read_token(path) if path.exists() else None


def read_token(path: Path) -> str:
    """Read a file of one token. Raises StoreError."""
    try:
        text = read(path)[: LARGEST_TOKEN + 1].decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from None
    if not text or len(text) > LARGEST_TOKEN or not text.isprintable():
        raise StoreError(f"{path} holds no token: expected one line of printable characters.")
    return text


def _federation_bytes(directory: Path) -> bytes:
    made = "the directory of an ensemble, as made by `terrine federation gather`"
    return document_bytes(directory / FEDERATION, "federation", made)
