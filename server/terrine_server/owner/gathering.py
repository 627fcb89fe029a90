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

from terrine_models.roster import Roster, first_problem, owner_token, save_roster
from terrine_models.store import StoreError, sha256, write_atomically

QUORUM = 0.75
"""The share of owners that must answer, unless the file says how many."""


def gather(file: Path, name: str, directory: Path) -> Roster:
    """Write the roster that `file` (TOML) describes to a new `directory`, with what it names.

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
        made = [_copied(file, directory, dict(each)) for each in owners]
        given = {
            "name": name,
            "quorum": ceil(QUORUM * len(made)),
            "salt": secrets.token_hex(32),
            **document,
            "owners": made,
        }
        try:
            roster = Roster.model_validate(given, strict=False)
        except ValidationError as error:
            raise StoreError(f"{file}: {first_problem(error)}.") from None
        for owner in roster.owners:
            owner_token(directory, owner)
        save_roster(directory, roster)
    except BaseException:  # also an interrupt: half a roster is of no use
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return roster


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{file} cannot be read: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise StoreError(f"{file} is no TOML: {error}.") from None


def _copied(file: Path, directory: Path, owner: dict[str, Any]) -> Mapping[str, Any]:
    """Copy the certificate and token that an owner's entry names; return the entry without them."""
    from terrine_models.roster import Owner

    certificate, token = owner.pop("certificate", None), owner.pop("token_file", None)
    try:
        Owner.model_validate(owner)  # its name is safe as that of a file
    except ValidationError as error:
        what = owner.get("name", "without a name")
        raise StoreError(f"{file}: owner {what}: {first_problem(error)}.") from None
    for given, suffix in ((certificate, "pem"), (token, "token")):
        if given is None:
            continue
        try:
            data = (file.parent / str(given)).read_bytes()
        except OSError as error:
            raise StoreError(f"{given} cannot be read: {error.strerror}.") from None
        write_atomically(directory / f"{owner['name']}.{suffix}", data)
        if suffix == "pem":
            owner["certificate"] = sha256(data)
    return owner
