"""A project's ledger as a file: one JSON object per line, first the account, then every entry.

It holds everything that the hashes cover, so it can be verified from the file alone, even years
after the database is gone.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import RowMapping

from terrine_protocol import LogEntry
from terrine_protocol.files import opened as opened_file
from terrine_server.ledger.chain import TERMS_FIELDS, canonical_json, iso
from terrine_server.ledger.counts import text_of, whole_numbers
from terrine_server.ledger.records import ChargeRecord
from terrine_server.ledger.verifying.entries import COLUMNS, PAGE, Pages, StoredEntry

FORMAT = "terrine-export/1"
LOG_FORMAT = "terrine-log/1"
ACCOUNT_FIELDS = (
    "id",
    *TERMS_FIELDS,
    "status",
    "closed_at",
    "spent",
    "delta_spent",
    "cap_spent",
    "charges",
    "published",
    "genesis",
    "head",
)
_DIGESTS = {"ensemble__manifest_sha256", "genesis", "head"}
_TIMES = {"opened_at", "closed_at"}
_FIELDS = {"project", "project_id", *COLUMNS} - {"counts"}
"""Those of every entry. One with noisy counts has `counts` besides."""


class ArchiveError(Exception):
    """A file that is not an export. The message says where."""


def account_line(project: RowMapping) -> dict[str, Any]:
    """Return the first line of an export, from a row of `rows.select_projects`."""

    def plain(value: Any) -> Any:
        if isinstance(value, datetime):
            return iso(value)
        return value.hex() if isinstance(value, bytes) else value

    return {
        "format": FORMAT,
        "version": version("terrine"),
        "account": {name: plain(project[name]) for name in ACCOUNT_FIELDS},
    }


def entry_line(entry: ChargeRecord) -> dict[str, Any]:
    """Return an entry's line, with its time in the form that is hashed."""
    line = {**vars(entry), "created_at": iso(entry.created_at)}
    counts = line.pop("counts")
    return line if counts is None else {**line, "counts": list(counts)}


def log_line(entries: int, head: bytes) -> dict[str, Any]:
    """Return the first line of an export of the administrative log: where the log ends."""
    return {
        "format": LOG_FORMAT,
        "version": version("terrine"),
        "entries": entries,
        "head": head.hex(),
    }


def log_entry_line(entry: LogEntry) -> dict[str, Any]:
    """Return the line of an entry of that log, with its time in the form that is hashed."""
    return {**vars(entry), "created_at": iso(entry.created_at)}


@contextmanager
def opened(path: Path) -> Iterator[tuple[dict[str, Any], Iterator[StoredEntry]]]:
    """Open an export; yield the account, as `account_line` took it, and an iterator of entries.

    Raises OSError, and ArchiveError if the file is not an export, or a line not an entry.
    """
    with io.TextIOWrapper(opened_file(path), "utf-8", "surrogateescape") as lines:
        try:
            first = json.loads(next(lines, ""))
            if first["format"] != FORMAT or first["account"].keys() != set(ACCOUNT_FIELDS):
                raise ValueError(first["format"])
            project = {name: _stored(name, value) for name, value in first["account"].items()}
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            raise ArchiveError(
                f"{path} does not begin with an account; expected what "
                "`terrine ledger export` of this version writes."
            ) from None
        yield project, _entries(path, project, lines)


def pages(entries: Iterator[StoredEntry]) -> Pages:
    """Group the entries into pages."""
    while page := list(islice(entries, PAGE)):
        yield page


def _entries(path: Path, project: Mapping[str, Any], lines: Iterable[str]) -> Iterator[StoredEntry]:
    for number, line in enumerate(lines, start=2):
        try:
            yield _entry(project, line)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ArchiveError(
                f"{path}, line {number}: not an entry of the project {project['name']}."
            ) from None


def _entry(project: Mapping[str, Any], line: str) -> StoredEntry:
    entry = json.loads(line)
    if entry.keys() - {"counts"} != _FIELDS:
        raise KeyError("other fields than an entry's")
    if (entry["project"], entry["project_id"]) != (project["name"], project["id"]):
        raise ValueError("an entry of another project")
    for name in ("seq", "label", "figure", "cost", "delta", "cap_cost"):
        missing = name in ("label", "figure") and entry[name] is None
        if type(entry[name]) is not int and not missing:
            raise TypeError(name)
    for name in ("query_digest", "input_digest", "hash"):
        entry[name] = bytes.fromhex(entry[name])
    for name in ("mechanism", "event"):
        entry[name] = canonical_json(entry[name])
    entry["counts"] = text_of(whole_numbers(entry["counts"]) if "counts" in entry else None)
    return tuple(entry[name] for name in COLUMNS)


def _stored(name: str, value: Any) -> Any:
    if name in _DIGESTS:
        return bytes.fromhex(value)
    if name in _TIMES and value is not None:
        return datetime.fromisoformat(value).astimezone(UTC)
    return value
