"""Makes an ensemble of teachers that stay with their owners, from a file that names them."""

from __future__ import annotations

import secrets
import shutil
import tomllib
from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from terrine_addons.federation.federations import (
    Federation,
    Owner,
    owner_token,
    save_federation,
)
from terrine_models.storage.manifests import StoreError, sha256
from terrine_protocol.base import first_problem
from terrine_protocol.files import read, write_atomically
from terrine_protocol.names import find_unshown

# The share of owners that must answer, unless the file says how many.
QUORUM = 0.75


def create_federation(file: Path, name: str, directory: Path) -> Federation:
    """Write the federation that `file` (TOML) describes to a new `directory`, with what it names.

    Certificates and tokens are read relative to the file, and copied. Raises StoreError; then
    nothing is left behind.
    """
    if directory.exists():
        raise StoreError(f"{directory} exists. Remove it, or choose another name.")
    document = _read(file)
    owners = document.pop("owner", None)
    if not isinstance(owners, list) or not all(isinstance(each, dict) for each in owners):
        raise StoreError(f"{file} names no owners: expected a table [[owner]] for each.")
    directory.mkdir(mode=0o700, parents=True)
    try:
        made = [_copy_credentials(file, directory, dict(each)) for each in owners]
        given = {
            "name": name,
            "quorum": ceil(QUORUM * len(made)),
            "salt": secrets.token_hex(32),
            **document,
            "owners": made,
        }
        try:
            federation = Federation.model_validate(given, strict=False)
        except ValidationError as error:
            raise StoreError(f"{file}: {first_problem(error)}.") from None
        if wrong := find_unshown(federation.classes):
            raise StoreError(f"{file}: {wrong}.")
        for owner in federation.owners:
            owner_token(directory, owner)
        save_federation(directory, federation)
    except BaseException:  # also an interrupt: half a federation is of no use
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return federation


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read(file).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{file} cannot be read: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise StoreError(f"{file} is not a TOML file: {error}.") from None


def _copy_credentials(file: Path, directory: Path, entry: dict[str, Any]) -> Mapping[str, Any]:
    """Copy the certificate and token that an owner's entry names; return the rest of it."""
    certificate, token = entry.pop("certificate", None), entry.pop("token_file", None)
    try:
        Owner.model_validate(entry, strict=False)  # its name is safe as that of a file
    except ValidationError as error:
        what = f"owner {entry.get('name', 'without a name')}"
        raise StoreError(f"{file}: {what}: {first_problem(error)}.") from None
    for given, suffix in ((certificate, "pem"), (token, "token")):
        if given is None:
            continue
        try:
            data = read(file.parent / str(given))
        except OSError as error:
            raise StoreError(f"{given} cannot be read: {error.strerror}.") from None
        write_atomically(directory / f"{entry['name']}.{suffix}", data)
        if suffix == "pem":
            entry["certificate"] = sha256(data)
    return entry
