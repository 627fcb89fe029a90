"""The terms of an aggregator: what all its parties agree on, before the first vote is split.

The aggregator's party writes them into a file, every owner gets a copy, and each side refuses
whatever was done under others: docs/privacy/secret-sharing.md.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import tomllib
from pathlib import Path
from typing import Annotated, Self

import httpx
from pydantic import Field, ValidationError, model_validator

from terrine_models.storage.manifests import Name, StoreError
from terrine_protocol.files import read
from terrine_protocol.tables import Record, first_problem
from terrine_server.privacy import NoisyVotes, Terms, quote

TERMS = "Terrine-Terms"
"""The header with the digest of the terms under which an owner shares."""


class AggregatorTerms(Record):
    """What an aggregator does, fixed when it is made."""

    owners: Annotated[tuple[Name, ...], Field(min_length=2, max_length=10_000)]
    classes: int
    """Numbers in each row of a share. One row is what one query is priced at, so an owner whose
    rows had fewer would have several votes counted as one."""
    sigma: float
    """Of its noise, in votes."""
    epsilon: float
    delta: float
    """What the service may learn from all that is ever released."""

    @model_validator(mode="after")
    def _are_coherent(self) -> Self:
        if len(set(self.owners)) < len(self.owners):
            raise ValueError("owners must have different names")
        self.price()
        return self

    def price(self) -> Terms:
        """Return the price of each query under this budget: that of noisy counts with this σ."""
        mechanism = NoisyVotes(len(self.owners), self.classes, self.sigma)
        return quote(mechanism, self.epsilon, self.delta)

    def digest(self) -> str:
        """Return the SHA-256 that a share names them by."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


class AggregatorInfo(Record):
    """What an aggregator says of itself to those who hold a token of it."""

    terms: AggregatorTerms
    queries_left: int


def read_terms(file: Path) -> AggregatorTerms:
    """Read the terms from a file of TOML. Raises StoreError."""
    try:
        return AggregatorTerms.model_validate(tomllib.loads(read(file).decode()))
    except OSError as error:
        raise StoreError(f"{file} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise StoreError(f"{file} is no TOML: {error}.") from None
    except ValidationError as error:
        raise StoreError(f"{file}: {first_problem(error)}.") from None


def ask_terms(http: httpx.AsyncClient, seconds: float) -> AggregatorInfo | str:
    """Ask an aggregator for its terms and close the connection; or return why there are none."""

    async def asked() -> httpx.Response:
        async with http:
            return await http.get("v1/terms", timeout=seconds)

    try:
        reply = asyncio.run(asked())
    except (httpx.HTTPError, ssl.SSLError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    if reply.status_code != 200:
        return f"status {reply.status_code}"
    try:
        return AggregatorInfo.model_validate_json(reply.content)
    except ValidationError as error:
        return f"no terms of an aggregator ({first_problem(error)})"
